"""Statistics of SGLang between two calls."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from strop.types import EngineStatistics

_NONE = EngineStatistics(0, 0, 0.0, 0, 0, 0)


class CompletionStatistics:
    """Adds up what SGLang reports with each completion, and the load of its scheduler at that moment."""

    def __init__(self) -> None:
        self._total = _NONE

    def record(self, meta_info: dict[str, Any], loads: Iterable[Any]) -> None:
        """Add a completion's `meta_info` and the load snapshots of the schedulers."""
        counts = EngineStatistics(
            max_running=0,
            max_waiting=0,
            max_kv_usage=0.0,
            prompt_tokens=meta_info["prompt_tokens"],
            cached_prompt_tokens=meta_info["cached_tokens"],
            preemptions=meta_info.get("num_retractions", 0),
        )
        for load in loads:
            running = EngineStatistics(
                load.num_running_reqs, load.num_waiting_reqs, load.token_usage, 0, 0, 0
            )
            counts = counts.combined_with(running)
        self._total = self._total.combined_with(counts)

    def take(self) -> EngineStatistics:
        """The load since the last call."""
        taken, self._total = self._total, _NONE
        return taken
