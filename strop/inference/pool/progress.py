"""Detection of an engine that makes no progress."""

from __future__ import annotations

import time
from collections.abc import Callable

_MAX_REPORT_SECONDS = 5.0


class ProgressWatch:
    """Time since an engine's last progress, while it has work."""

    def __init__(self, timeout_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        """The engine hangs after `timeout_seconds` without progress; `clock` gives the time in seconds."""
        self.timeout_seconds = timeout_seconds
        self.report_seconds = min(timeout_seconds / 4, _MAX_REPORT_SECONDS)
        """Interval at which the engine's process reports."""
        self.processed_tokens = 0
        """Tokens of the last report."""
        self._clock = clock
        self._since = clock()

    def restart(self) -> None:
        """Count from now: the engine has begun or completed something."""
        self._since = self._clock()

    def observe(self, processed_tokens: int | None) -> None:
        """Take a report; it is progress if the number has changed, or if the engine does not count."""
        if processed_tokens is None or processed_tokens != self.processed_tokens:
            self.processed_tokens = processed_tokens or 0
            self.restart()

    def is_hanging(self, *, is_busy: bool) -> bool:
        """Whether the engine has made no progress for the timeout; an idle engine has nothing to do."""
        if not is_busy:
            self.restart()
        return self._clock() - self._since > self.timeout_seconds
