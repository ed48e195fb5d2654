"""Process-wide settings of the tests."""

from __future__ import annotations

import os
import signal

# As `make test` sets it: sums over a different number of threads differ in their last bits, and some tests compare a
# run in this process bit for bit with one in processes of its own.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from hypothesis import settings

# An example takes longer than Hypothesis' 200 ms on a machine that does other work too.
settings.register_profile("strop", deadline=None)
settings.load_profile("strop")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that starts `make test &` makes it ignore SIGINT, and the processes that tests interrupt inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
