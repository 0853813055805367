"""What holds for all tests."""

from __future__ import annotations

import signal

# A shell that starts us in the background has SIGINT ignored, and a process passes that on to all it starts: the tests
# of Ctrl-C would then send signals that nobody hears.
signal.signal(signal.SIGINT, signal.default_int_handler)
