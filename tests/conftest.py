"""Process-wide settings of the tests."""

from __future__ import annotations

import signal

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that starts `make test &` makes it ignore SIGINT, and the processes that tests interrupt inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
