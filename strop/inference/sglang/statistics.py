"""Statistics of SGLang between two calls."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from strop.types import EngineStatistics

_NONE = EngineStatistics(0, 0, 0.0, 0, 0, 0)


class CompletionStatistics:
    """Adds up what SGLang reports with each completion, and the load of its scheduler at that moment."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` gives the time in seconds."""
        self._clock = clock
        self._total = _NONE
        self._running = 0
        self._counted_until = clock()
        """Time up to which the time with running requests has been added."""

    @property
    def is_running(self) -> bool:
        """Whether any request is running."""
        return self._running > 0

    @contextmanager
    def running(self) -> Iterator[None]:
        """A context in which one request is running."""
        self._count_time()
        self._running += 1
        try:
            yield
        finally:
            self._count_time()
            self._running -= 1

    def record(self, meta_info: dict[str, Any], loads: Iterable[Any]) -> None:
        """Add a completion's `meta_info` and the load snapshots of the schedulers."""
        counts = EngineStatistics(
            max_running=0,
            max_waiting=0,
            max_kv_usage=0.0,
            # A request that is aborted while it waits has no counts.
            prompt_tokens=meta_info.get("prompt_tokens", 0),
            cached_prompt_tokens=meta_info.get("cached_tokens", 0),
            preemptions=meta_info.get("num_retractions", 0),
            sampled_tokens=len(meta_info["output_token_logprobs"]),
        )
        for load in loads:
            running = EngineStatistics(
                load.num_running_reqs, load.num_waiting_reqs, load.token_usage, 0, 0, 0
            )
            counts = counts.combined_with(running)
        self._total = self._total.combined_with(counts)

    def take(self) -> EngineStatistics:
        """The load since the last call."""
        self._count_time()
        taken, self._total = self._total, _NONE
        return taken

    def _count_time(self) -> None:
        now = self._clock()
        if self._running:
            busy = replace(_NONE, busy_seconds=now - self._counted_until)
            self._total = self._total.combined_with(busy)
        self._counted_until = now
