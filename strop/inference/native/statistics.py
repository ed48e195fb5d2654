"""Statistics of the native engine between two calls."""

from __future__ import annotations

from dataclasses import replace

from strop.types import EngineStatistics

_NONE = EngineStatistics(0, 0, 0.0, 0, 0, 0)


class StepStatistics:
    """Adds up the load of the scheduler's steps."""

    def __init__(self) -> None:
        self._total = _NONE

    def record_prompts(self, tokens: int, cached: int) -> None:
        """Add the prompt tokens of admitted requests, and how many of them were in the cache."""
        self._add(replace(_NONE, prompt_tokens=tokens, cached_prompt_tokens=cached))

    def record_step(
        self, *, running: int, waiting: int, kv_usage: float, sampled_tokens: int, seconds: float
    ) -> None:
        """Add one step: its load, the fraction of the KV cache that is reserved, its tokens and its duration."""
        step = EngineStatistics(running, waiting, kv_usage, 0, 0, 0, sampled_tokens, seconds)
        self._add(step)

    def take(self) -> EngineStatistics:
        """The load since the last call."""
        taken, self._total = self._total, _NONE
        return taken

    def _add(self, statistics: EngineStatistics) -> None:
        self._total = self._total.combined_with(statistics)
