"""Clock of the time in which another process has given no sign of life."""

from __future__ import annotations

import time
from threading import Lock

_LONGEST_GAP_SECONDS = 2.0
"""Longest time between two looks that counts; a longer one means that this process was suspended."""


class SilenceClock:
    """Adds up the time between looks; a machine that was suspended with both processes has missed nothing."""

    def __init__(self) -> None:
        self._silent_seconds = 0.0
        self._looked = time.monotonic()
        self._lock = Lock()

    def look(self, *, heard: bool) -> float:
        """Seconds since the last look at which something was `heard`. Any thread may call it."""
        with self._lock:
            now = time.monotonic()
            gap = min(now - self._looked, _LONGEST_GAP_SECONDS)
            self._silent_seconds = 0.0 if heard else self._silent_seconds + gap
            self._looked = now
            return self._silent_seconds
