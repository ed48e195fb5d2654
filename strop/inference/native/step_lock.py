"""Lock between decoding, in an event loop, and the calls of other threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_POLL_SECONDS = 0.001
"""Interval at which the event loop asks for the lock while another thread holds it."""


class StepLock:
    """Lock that is held during a step, and by every method that changes what the next step sees."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: set[object] = set()
        """Calls from other threads that wait for the lock; decoding lets them go first."""

    @contextmanager
    def between_steps(self) -> Iterator[None]:
        """Hold the lock, in any thread; decoding waits."""
        ticket = object()
        self._waiting.add(ticket)
        try:
            self._lock.acquire()
        finally:
            self._waiting.discard(ticket)
        try:
            yield
        finally:
            self._lock.release()

    async def acquire(self) -> None:
        """Take the lock without blocking the event loop, after the threads that wait for it."""
        while self._waiting or not self.try_acquire():
            await asyncio.sleep(_POLL_SECONDS)

    def try_acquire(self) -> bool:
        """Take the lock if it is free; whether it was."""
        return self._lock.acquire(blocking=False)

    def release(self) -> None:
        """Release the lock."""
        self._lock.release()
