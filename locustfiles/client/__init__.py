"""The client that times streams: sockets and clocks on one side, the meaning of bytes (no I/O, no time) beside them."""
