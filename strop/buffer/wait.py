"""Waiting that has a limit, and says on what and for how long."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from strop.errors import StoreError

log = logging.getLogger("strop.buffer")

SLICE_SECONDS = 1.0
"""No wait sleeps longer than this without asking whether it may go on."""
_QUIET_SECONDS = 10.0
"""A wait says nothing for so long, and after that again and again, ever more rarely."""

Check = Callable[[], None]
"""Called at least once a second by whatever waits; what it raises ends the wait."""


def never_stop() -> None:
    """The check of those who have nothing to check."""


class Wait:
    """One wait."""

    def __init__(self, limit_seconds: float, check: Check) -> None:
        self.limit_seconds = limit_seconds
        self._check = check
        self._started = time.monotonic()
        self._say_at = _QUIET_SECONDS

    @property
    def seconds(self) -> float:
        """How long it has been."""
        return time.monotonic() - self._started

    @property
    def left(self) -> float:
        """How long it may still be, in seconds."""
        return max(0.0, self.limit_seconds - self.seconds)

    def slice(self, on_what: str, wanted_seconds: float = SLICE_SECONDS) -> float:
        """How long to sleep now. Says on what it waits when that is due; raises what the check raises."""
        self._check()
        if self.seconds >= self._say_at:
            self._say_at = self.seconds * 2
            seconds, limit = self.seconds, self.limit_seconds
            log.warning("Waiting for %s: %.0f s so far, %.0f s at most.", on_what, seconds, limit)
        return max(0.0, min(wanted_seconds, SLICE_SECONDS, self.left))

    def end(self, found: int, wanted: int, where: str) -> None:
        """Say so where a wait for groups found fewer than were wanted."""
        if found < wanted and self.limit_seconds > 0:
            log.warning("%d of %d groups were in %s after %.0f s.", found, wanted, where, self.seconds)


def require_fits(groups: int, capacity_groups: int) -> None:
    """Raises `StoreError` for a batch that could never be there whole."""
    if groups > capacity_groups:
        raise StoreError(
            f"A batch of {groups} groups is asked of a buffer that holds {capacity_groups} at most, so it "
            f"could never be complete. Set `buffer.capacity_groups` to {groups} or more."
        )
