"""Rate limit of calls: a token bucket."""

from __future__ import annotations

import asyncio
import time


class RateLimit:
    """At most `per_second` calls per second, after a first burst of as many."""

    def __init__(self, per_second: float) -> None:
        self._rate = per_second
        self._capacity = max(1.0, per_second)
        self._tokens = self._capacity
        self._updated: float | None = None

    async def wait(self) -> None:
        """Wait until the next call is allowed; callers are served in their order."""
        await asyncio.sleep(self.reserve(time.monotonic()))

    def reserve(self, now: float) -> float:
        """Take one token at the time `now`, in seconds; returns the seconds until it is there."""
        elapsed = 0.0 if self._updated is None else now - self._updated
        self._tokens = min(self._capacity, self._tokens + elapsed * self._rate) - 1
        self._updated = now
        return max(0.0, -self._tokens / self._rate)
