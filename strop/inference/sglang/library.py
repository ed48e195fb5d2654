"""Import of SGLang with the environment variables that it reads then, arguments of its engine, and statistics."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError
from transformers import PretrainedConfig

from strop.config.peft_adapter import adapter_options
from strop.config.schema.model import LoraConfig, ModelConfig
from strop.config.schema.rollout import SglangEngineConfig
from strop.errors import ConfigError, InferenceError, MissingExtraError
from strop.inference.serving.backend import (
    SERVING_CAPABILITIES,
    check_engine_kwargs,
    engine_dtype,
    given_options,
)
from strop.inference.weight_transfer import WeightOffer
from strop.protocols import EngineCapabilities
from strop.types import EngineStatistics

_ENVIRONMENT = {
    # Strop's limit of a sequence is a few tokens below SGLang's, which may then be above the model's.
    "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1",
}
_CPU_ENVIRONMENT = {"SGLANG_USE_CPU_ENGINE": "1"}
_NONE = EngineStatistics(0, 0, 0.0, 0, 0, 0)
FILE_LOADER = "strop.inference.sglang.weight_loader.load_weight_file"
RECEIVER = "strop.inference.sglang.weight_loader.receive_weights"
RESERVED_TOKENS = 6
"""Positions of the context length that SGLang does not give to a prompt and its completion."""
_BY_FIELD = {
    "tensor_parallel": "tp_size",
    "pipeline_parallel": "pp_size",
    "mem_fraction_static": "mem_fraction_static",
    "max_total_tokens": "max_total_tokens",
    "max_running_requests": "max_running_requests",
    "chunked_prefill_size": "chunked_prefill_size",
    "max_prefill_tokens": "max_prefill_tokens",
    "context_length": "context_length",
    "disable_cuda_graph": "disable_cuda_graph",
    "disable_radix_cache": "disable_radix_cache",
    "attention_backend": "attention_backend",
    "deterministic": "enable_deterministic_inference",
    "enable_memory_saver": "enable_memory_saver",
    "quantization": "quantization",
    "load_format": "load_format",
    "seed": "random_seed",
}
"""SGLang's name of each option of the section; an option without a value is not passed."""
_ANY_TYPES = ConfigDict(arbitrary_types_allowed=True)
_CPU_DEFAULTS = {
    "attention_backend": "torch_native",
    "sampling_backend": "pytorch",
    "mm_attention_backend": "sdpa",
    "disable_cuda_graph": True,
    "disable_overlap_schedule": True,
}
"""Arguments without which SGLang calls kernels that need a GPU."""
_CPU_PADDING = 32
"""On the CPU each process's part of a layer's intermediate size is padded to a multiple of it."""


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


def engine_arguments(
    section: SglangEngineConfig, model: ModelConfig, vocab_size: int, *, on_cpu: bool
) -> dict[str, Any]:
    """Arguments of `ServerArgs`, by name."""
    arguments: dict[str, Any] = {
        "model_path": model.path,
        "tokenizer_path": model.tokenizer or model.path,
        "trust_remote_code": model.trust_remote_code,
        "dtype": engine_dtype(section, model),
        "json_model_override_args": json.dumps(model.override),
        "device": "cpu" if on_cpu else "cuda",
        "custom_weight_loader": [FILE_LOADER, RECEIVER],
        # The log-probs of filtered distributions; a filter without top_k may keep every token.
        "sampling_mask_max_tokens": vocab_size,
        "skip_server_warmup": True,
        "log_level": "error",
    }
    given = given_options(section, _BY_FIELD)
    if section.context_length is not None:
        given["context_length"] = section.context_length + RESERVED_TOKENS
    if on_cpu:
        given |= {name: value for name, value in _CPU_DEFAULTS.items() if not given.get(name)}
        given.pop("enable_memory_saver", None)  # it is for a GPU's memory
    return arguments | given


def adapter_arguments(
    section: SglangEngineConfig, lora: LoraConfig, config: PretrainedConfig, *, on_cpu: bool
) -> dict[str, Any]:
    """Arguments of an engine that applies the model's LoRA adapter itself.

    Raises `ConfigError` for a model whose layers SGLang pads on the CPU, to which its adapters do not fit.
    """
    options = adapter_options(lora)
    is_listed = lora.adapter is None and isinstance(options.targets, tuple)
    arguments = {
        "enable_lora": True,
        "max_loras_per_batch": 1,
        "max_lora_rank": options.max_rank,
        "lora_target_modules": list(options.targets or ()) if is_listed else ["all"],
    }
    if not on_cpu:
        return arguments
    width, multiple = config.get_text_config().intermediate_size, _CPU_PADDING * section.tensor_parallel
    if width % multiple:
        raise ConfigError(
            f"rollout.engine: on the CPU SGLang pads the model's intermediate_size ({width}) to a multiple of "
            f"{multiple}, and a LoRA adapter does not fit to the padded layers. Write rollout.engine.merge_lora: true."
        )
    return arguments | {"lora_backend": "torch_native"}


def add_engine_kwargs(
    arguments: dict[str, Any], section: SglangEngineConfig, known: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments with those of `engine_kwargs`; `known` has the type of each of SGLang's arguments.

    Raises `ConfigError` for a name that SGLang does not have, for one that Strop sets, and for a value of another type.
    """
    if "dp_size" in section.engine_kwargs:
        raise ConfigError(
            "rollout.engine.engine_kwargs.dp_size: several engines are a pool in Strop; write rollout.pool.engines."
        )
    set_by_strop = arguments.keys() - _CPU_DEFAULTS.keys()
    check_engine_kwargs(
        section, _BY_FIELD, set_by_strop=set_by_strop, known=known, owner="SGLang's ServerArgs"
    )
    for name, value in section.engine_kwargs.items():
        _check_type(name, value, known[name])
    return arguments | section.engine_kwargs


def _check_type(name: str, value: Any, expected: Any) -> None:
    try:
        TypeAdapter(expected, config=_ANY_TYPES).validate_python(value, strict=True)
    except ValidationError as error:
        reason = error.errors()[0]["msg"]
        raise ConfigError(
            f"rollout.engine.engine_kwargs.{name} is {value!r}, which SGLang's ServerArgs does not take: {reason}."
        ) from error


class SglangFeatures:
    """Base of the two backends: the methods of `ServingBackend` that they share, or that neither supports."""

    name: str
    report_seconds = 0.0

    def __init__(self) -> None:
        self.capabilities: EngineCapabilities = SERVING_CAPABILITIES
        self._statistics = CompletionStatistics()

    async def receivers(self) -> list[str | None]:
        """Raise `InferenceError`: not supported."""
        raise InferenceError(f"the {self.name} engine receives no weights over a process group")

    async def receive_weights(self, offer: WeightOffer, host: str) -> list[str]:
        """Raise `InferenceError`: not supported."""
        raise InferenceError(f"the {self.name} engine receives no weights over a process group")

    async def load_adapter(self, folder: Path, version: int) -> None:
        """Raise `InferenceError`: not supported."""
        raise InferenceError(f"the {self.name} engine loads merged weights")

    @property
    def processed_tokens(self) -> int | None:
        """None: a server reports tokens with completions only."""
        return None

    def take_statistics(self) -> EngineStatistics:
        """Load since the last call; of a server without that of its scheduler."""
        return self._statistics.take()
