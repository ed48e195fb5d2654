"""Time of a discrete-event simulation: events in order, and processes that sleep and wait."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial


@dataclass(frozen=True, slots=True)
class Wait:
    """A process's wait for a condition, which it sees at once or at its next poll; at most until the timeout."""

    condition: Callable[[], bool]
    poll: float = 0.0
    timeout: float = math.inf


Process = Generator[float | Wait, None, None]


class Clock:
    """Events in the order of time, and processes: generators that yield a duration to sleep, or a wait."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self._waiting: list[tuple[Process, Wait, float]] = []

    def at(self, time: float, call: Callable[[], None]) -> None:
        """Call a function at a time."""
        self._number += 1
        heapq.heappush(self._events, (time, self._number, call))

    def start(self, process: Process) -> None:
        """Run a process until its end, from its present state."""
        for yielded in process:
            if not isinstance(yielded, Wait):
                self.at(self.now + yielded, lambda: self.start(process))
                return
            if not yielded.condition():
                self._waiting.append((process, yielded, self.now))
                if yielded.timeout < math.inf:
                    self.at(self.now + yielded.timeout, lambda: None)
                return

    def run(self, until: Callable[[], bool]) -> None:
        """Handle events until a condition holds. Raises RuntimeError if no event is left before."""
        while not until():
            if not self._events:
                raise RuntimeError(f"the simulated run is blocked at {self.now:.3f} s")
            self.now, _, call = heapq.heappop(self._events)
            call()
            while self._resume():
                pass

    def _resume(self) -> bool:
        for place, (process, wait, began) in enumerate(self._waiting):
            timed_out = self.now - began >= wait.timeout
            if timed_out or wait.condition():
                del self._waiting[place]
                late = 0.0 if timed_out or not wait.poll else -(self.now - began) % wait.poll
                self.at(self.now + late, partial(self.start, process))
                return True
        return False
