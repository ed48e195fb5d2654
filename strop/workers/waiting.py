"""Waiting with a time limit, a stop check, and log messages that name what is awaited; blocking calls in a thread."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

T = TypeVar("T")
log = logging.getLogger("strop.workers")

MAX_SLEEP_SECONDS = 1.0
"""Longest sleep between two stop checks."""
_FIRST_WARNING_SECONDS = 10.0
"""Elapsed time at the first warning of a wait; each further warning comes after twice the time."""

StopCheck = Callable[[], None]
"""Called at least once a second during a wait; an exception that it raises ends the wait."""


def never_stop() -> None:
    """A stop check that never ends a wait."""


class TimedWait:
    """The clock of one wait: elapsed and remaining time, warnings, and the stop check."""

    def __init__(self, timeout_seconds: float, check: StopCheck = never_stop) -> None:
        self.timeout_seconds = timeout_seconds
        self._check = check
        self._started = time.monotonic()
        self._warn_at = _FIRST_WARNING_SECONDS

    @property
    def elapsed_seconds(self) -> float:
        """Time since the wait began."""
        return time.monotonic() - self._started

    @property
    def remaining_seconds(self) -> float:
        """Time until the timeout; 0 after it."""
        return max(0.0, self.timeout_seconds - self.elapsed_seconds)

    def next_sleep_seconds(self, awaited: str, interval_seconds: float = MAX_SLEEP_SECONDS) -> float:
        """Duration of the next sleep, at most `interval_seconds` and the remaining time.

        Calls the stop check, and logs a warning that names `awaited` when one is due.
        """
        self._check()
        if self.elapsed_seconds >= self._warn_at:
            self._warn_at = self.elapsed_seconds * 2
            log.warning(
                "Waiting for %s: %.0f s so far, at most %.0f s.",
                awaited,
                self.elapsed_seconds,
                self.timeout_seconds,
            )
        return max(0.0, min(interval_seconds, MAX_SLEEP_SECONDS, self.remaining_seconds))

    def sleep(self, awaited: str, interval_seconds: float = MAX_SLEEP_SECONDS) -> None:
        """Sleep until the next look. See `next_sleep_seconds`."""
        time.sleep(self.next_sleep_seconds(awaited, interval_seconds))


def wait_until(
    condition: Callable[[], bool],
    awaited: str,
    *,
    timeout_seconds: float,
    interval_seconds: float = MAX_SLEEP_SECONDS,
    check: StopCheck = never_stop,
) -> bool:
    """Poll a condition until it is true. Returns False if it is still false after the timeout."""
    wait = TimedWait(timeout_seconds, check)
    while not condition():
        if wait.remaining_seconds <= 0:
            return False
        wait.sleep(awaited, interval_seconds)
    return True


def call_with_checks(call: Callable[[], T], check: StopCheck, *, interval_seconds: float = 0.2) -> T:
    """Run a call that cannot be interrupted in a thread, with stop checks until it returns.

    If a check raises, the thread is abandoned: it ends with its call, or with the process.
    """
    future: Future[T] = Future()

    def work() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001  (`result` raises it below)
            future.set_exception(error)

    threading.Thread(target=work, name="strop-call", daemon=True).start()
    while not wait([future], timeout=interval_seconds).done:
        check()
    return future.result()
