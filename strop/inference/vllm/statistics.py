"""Statistics of vLLM's scheduler between two calls."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from strop.types import EngineStatistics

_NONE = EngineStatistics(0, 0, 0.0, 0, 0, 0)


class StatisticsRecorder:
    """Stat logger of vLLM: adds up what the scheduler reports after each of its steps.

    vLLM calls it, and `take`, in one event loop.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` gives the time in seconds."""
        self._clock = clock
        self._total = _NONE
        self._last_step = clock()
        self._is_busy = False
        """Whether requests were running after the last step."""
        self.processed_tokens = 0
        """Prompt and sampled tokens computed so far."""

    def take(self) -> EngineStatistics:
        """The load since the last call."""
        taken, self._total = self._total, _NONE
        return taken

    def record(self, scheduler_stats: Any, iteration_stats: Any, *args: Any, **options: Any) -> None:
        """Called by vLLM after each step; either may be None."""
        self._total = self._total.combined_with(self._work_of(iteration_stats))
        if scheduler_stats is not None:
            self._total = self._total.combined_with(_load_of(scheduler_stats))
            self._is_busy = scheduler_stats.num_running_reqs > 0

    def _work_of(self, stats: Any) -> EngineStatistics:
        """Tokens and preemptions of one step, and the time since the step before it if requests were running."""
        now = self._clock()
        busy, self._last_step = (now - self._last_step if self._is_busy else 0.0), now
        if stats is None:
            return replace(_NONE, busy_seconds=busy)
        self.processed_tokens += stats.num_prompt_tokens + stats.num_generation_tokens
        return replace(
            _NONE,
            preemptions=stats.num_preempted_reqs,
            sampled_tokens=stats.num_generation_tokens,
            busy_seconds=busy,
        )

    def log(self) -> None:
        """Called by vLLM; nothing to print."""

    def log_engine_initialized(self) -> None:
        """Called by vLLM; nothing to print."""

    def record_sleep_state(self, *args: Any) -> None:
        """Called by vLLM; nothing to record."""


def _load_of(stats: Any) -> EngineStatistics:
    return EngineStatistics(
        stats.num_running_reqs,
        stats.num_waiting_reqs,
        stats.kv_cache_usage,
        stats.prefix_cache_stats.queries,
        stats.prefix_cache_stats.hits,
        0,
    )
