"""Import of SGLang, with the environment variables that it reads at that moment, and its statistics."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, get_type_hints

from strop.errors import MissingExtraError
from strop.types import EngineStatistics

_ENVIRONMENT = {
    # Strop's limit of a sequence is a few tokens below SGLang's, which may then be above the model's.
    "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1",
}
_CPU_ENVIRONMENT = {"SGLANG_USE_CPU_ENGINE": "1"}


@dataclass(frozen=True, slots=True)
class SglangLibrary:
    """The classes of SGLang that Strop uses."""

    version: str
    argument_types: Mapping[str, Any]
    """Type of each argument of the engine, from its class `ServerArgs`."""
    engine: Any
    """`Engine`"""
    generate: Any
    """Request class of a completion."""
    pause: Any
    resume: Any
    begin_update: Any
    update: Any
    """Request class of weights as tensors, between `begin_update` and `end_update`."""
    end_update: Any
    release_memory: Any
    resume_memory: Any
    set_version: Any
    """Request class of a label for the weights."""
    load_adapter: Any
    unload_adapter: Any
    serialize: Any
    """Function that serializes named tensors for `update`."""


def import_sglang(*, on_cpu: bool, processes: int) -> SglangLibrary:
    """Import SGLang. Raises `MissingExtraError` if it is not installed.

    On the CPU each of an engine's processes gets its own cores.
    """
    environment = _ENVIRONMENT
    if on_cpu:
        environment = environment | _CPU_ENVIRONMENT | {"SGLANG_CPU_OMP_THREADS_BIND": _cores(processes)}
    for name, value in environment.items():
        os.environ.setdefault(name, value)
    try:
        import sglang
    except ImportError as error:
        raise MissingExtraError(
            "An engine of the run has type sglang, and SGLang cannot be imported "
            f"({error}): pip install 'strop[sglang]'"
        ) from error
    from sglang.srt.entrypoints.engine import Engine
    from sglang.srt.managers import io_struct
    from sglang.srt.server_args import ServerArgs
    from sglang.srt.utils import MultiprocessingSerializer

    return SglangLibrary(
        version=sglang.__version__,
        argument_types=_argument_types(ServerArgs),
        engine=Engine,
        generate=io_struct.GenerateReqInput,
        pause=io_struct.PauseGenerationReqInput,
        resume=io_struct.ContinueGenerationReqInput,
        begin_update=io_struct.BeginWeightUpdateReqInput,
        update=io_struct.UpdateWeightsFromTensorReqInput,
        end_update=io_struct.EndWeightUpdateReqInput,
        release_memory=io_struct.ReleaseMemoryOccupationReqInput,
        resume_memory=io_struct.ResumeMemoryOccupationReqInput,
        set_version=io_struct.UpdateWeightVersionReqInput,
        load_adapter=io_struct.LoadLoRAAdapterReqInput,
        unload_adapter=io_struct.UnloadLoRAAdapterReqInput,
        serialize=MultiprocessingSerializer.serialize,
    )


def _argument_types(server_args: type) -> dict[str, Any]:
    hints = get_type_hints(server_args)
    return {name: hints[name] for name in server_args.__struct_fields__}  # type: ignore[attr-defined]


def _cores(processes: int) -> str:
    """The cores of each process, as SGLang reads them: `0,2|1,3`."""
    cores = sorted(os.sched_getaffinity(0))
    if processes > len(cores):
        return "|".join(str(cores[number % len(cores)]) for number in range(processes))
    return "|".join(",".join(map(str, cores[number::processes])) for number in range(processes))


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
