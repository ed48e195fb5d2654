"""Import of SGLang, and the environment variables that it reads at that moment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_type_hints

from strop.errors import MissingExtraError

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
