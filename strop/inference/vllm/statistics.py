"""Statistics of vLLM's scheduler between two calls."""

from __future__ import annotations

from typing import Any

from strop.types import EngineStatistics

_NONE = EngineStatistics(0, 0, 0.0, 0, 0, 0)


class StatisticsRecorder:
    """Stat logger of vLLM: adds up what the scheduler reports after each of its steps.

    vLLM calls it, and `take`, in one event loop.
    """

    def __init__(self) -> None:
        self._total = _NONE

    def take(self) -> EngineStatistics:
        """The load since the last call."""
        taken, self._total = self._total, _NONE
        return taken

    def record(self, scheduler_stats: Any, iteration_stats: Any, *args: Any, **options: Any) -> None:
        """Called by vLLM; either may be None."""
        preemptions = 0 if iteration_stats is None else iteration_stats.num_preempted_reqs
        if scheduler_stats is None:
            step = EngineStatistics(0, 0, 0.0, 0, 0, preemptions)
        else:
            step = EngineStatistics(
                scheduler_stats.num_running_reqs,
                scheduler_stats.num_waiting_reqs,
                scheduler_stats.kv_cache_usage,
                scheduler_stats.prefix_cache_stats.queries,
                scheduler_stats.prefix_cache_stats.hits,
                preemptions,
            )
        self._total = self._total.combined_with(step)

    def log(self) -> None:
        """Called by vLLM; nothing to print."""

    def log_engine_initialized(self) -> None:
        """Called by vLLM; nothing to print."""

    def record_sleep_state(self, *args: Any) -> None:
        """Called by vLLM; nothing to record."""
