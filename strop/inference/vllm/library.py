"""Import of vLLM, with the environment variables that it reads at that moment, and its statistics."""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from strop.errors import MissingExtraError
from strop.types import EngineStatistics

_ENVIRONMENT = {
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    # The CPU build binds its threads to cores by itself, the same cores for every engine of a machine.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}
"""Variables that are set before the import, unless they are set already."""


@dataclass(frozen=True, slots=True)
class VllmLibrary:
    """The classes of vLLM that Strop uses."""

    version: str
    engine_args: Any
    """`AsyncEngineArgs`, a dataclass of the engine's arguments."""
    engine: Any
    """`AsyncLLM`"""
    sampling_params: Any
    tokens_prompt: Any
    final_output: Any
    """Output kind of a request that is answered once, at its end."""
    lora_request: Any
    dead_error: type[Exception]
    """Exception of calls after the end of vLLM's engine process."""


def is_vllm_installed() -> bool:
    """Whether vLLM can be imported, without importing it."""
    return importlib.util.find_spec("vllm") is not None


def import_vllm() -> VllmLibrary:
    """Import vLLM. Raises `MissingExtraError` if it is not installed."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        import vllm
    except ImportError as error:
        raise MissingExtraError(
            f"An engine of the run has type vllm, and vLLM cannot be imported ({error}): pip install 'strop[vllm]'"
        ) from error
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.inputs import TokensPrompt
    from vllm.lora.request import LoRARequest
    from vllm.sampling_params import RequestOutputKind, SamplingParams
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.engine.exceptions import EngineDeadError

    return VllmLibrary(
        version=vllm.__version__,
        engine_args=AsyncEngineArgs,
        engine=AsyncLLM,
        sampling_params=SamplingParams,
        tokens_prompt=TokensPrompt,
        final_output=RequestOutputKind.FINAL_ONLY,
        lora_request=LoRARequest,
        dead_error=EngineDeadError,
    )


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
