"""The client that times streams: sockets and clocks on one side, what bytes mean (no I/O, no time) beside them."""
