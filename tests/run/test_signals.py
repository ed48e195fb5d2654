"""SIGINT and SIGTERM ask a run to stop, once; the handlers that were there come back."""

import os
import signal
import threading

import pytest

from strop.errors import Interrupted
from strop.workers.signals import StopSignal


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_remembered_until_someone_checks(number):
    before = signal.getsignal(number)
    with StopSignal() as stop:
        stop.check()
        os.kill(os.getpid(), number)
        assert stop.received == number
        with pytest.raises(Interrupted) as caught:
            stop.check()
        assert caught.value.exit_code == 128 + number
        assert signal.getsignal(number) == before, "a second signal must end the process"
    assert signal.getsignal(number) == before


def test_other_threads_get_no_signals_and_no_error():
    seen = []

    def work():
        with StopSignal() as stop:
            stop.check()
            seen.append(stop.received)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [None]
