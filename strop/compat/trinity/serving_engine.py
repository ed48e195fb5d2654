"""Ledger rows of Trinity's options of serving engines, in `explorer.rollout_model`.

Where `engine_type` is set to vLLM or SGLang, they decide `rollout.engine`. With `--here`, and where the type is not
set, the native sampler answers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from strop.compat.ledger.key_mapping import (
    UNSET,
    ForeignValues,
    InactiveCheck,
    KeyMapping,
    ReadFunction,
    SupportCheck,
    never,
    only,
    placement,
    written_by,
)
from strop.compat.ledger.placement_notes import NO_SHARDS
from strop.compat.ledger.value_types import ANY, STRING
from strop.config.schema import Run
from strop.config.schema.inference_engine import SglangEngineConfig, VllmEngineConfig

NATIVE = "the native sampler in the trainer's process"
_MODEL = "explorer.rollout_model"
_EXTRA = f"{_MODEL}.extra_engine_args."
_DATA_PARALLEL, _EXPERTS = f"{_MODEL}.data_parallel_size", f"{_MODEL}.enable_expert_parallel"
ENGINE_TYPES = {"vllm": "vllm", "vllm_async": "vllm", "sglang": "sglang"}
"""Engine of Strop for each engine type."""
_SIZES = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
"""Numbers of parts, of which the native sampler supports 1."""
DTYPES = ("bfloat16", "float16", "float32")
_DEFAULTS: Mapping[str, Any] = {
    "tensor_parallel_size": 1,
    "pipeline_parallel_size": 1,
    "enable_prefix_caching": True,
    "enforce_eager": True,
    "dtype": "bfloat16",
    "seed": 42,
    "gpu_memory_utilization": 0.9,
    "enable_chunked_prefill": False,
}
"""Default of each option."""
ENGINE_OPTIONS: Mapping[str, Mapping[str, str]] = {
    "vllm": {
        "tensor_parallel_size": "tensor_parallel",
        "pipeline_parallel_size": "pipeline_parallel",
        "enable_prefix_caching": "enable_prefix_caching",
        "enforce_eager": "enforce_eager",
        "dtype": "dtype",
        "seed": "seed",
        "gpu_memory_utilization": "gpu_memory_utilization",
        "enable_chunked_prefill": "enable_chunked_prefill",
    },
    "sglang": {
        "tensor_parallel_size": "tensor_parallel",
        "dtype": "dtype",
        "gpu_memory_utilization": "mem_fraction_static",
    },
}
"""Field of the engine's section for each option that Trinity passes to an engine."""


def serving_engine(foreign: ForeignValues) -> str | None:
    """The serving engine that the configuration asks for and `--here` does not replace."""
    key = f"{_MODEL}.engine_type"
    return ENGINE_TYPES.get(foreign[key]) if foreign.is_set(key) and not foreign.here else None


def data_parallel_size(foreign: ForeignValues) -> int:
    """Number of engines for each of Trinity's: one for every data-parallel rank of vLLM."""
    return int(foreign[_DATA_PARALLEL]) if serving_engine(foreign) == "vllm" else 1


def gpus_per_engine(foreign: ForeignValues) -> int:
    """Number of GPUs of each of Trinity's engines, with all its data-parallel ranks."""
    tensor_parallel = int(foreign[f"{_MODEL}.tensor_parallel_size"])
    if serving_engine(foreign) != "vllm":
        return tensor_parallel
    return tensor_parallel * int(foreign[f"{_MODEL}.pipeline_parallel_size"]) * data_parallel_size(foreign)


def write_engine(run: Run) -> Mapping[str, Any]:
    """Write the options of a serving engine; none for another engine."""
    section = run.rollout.engine
    if not isinstance(section, VllmEngineConfig | SglangEngineConfig):
        return {}
    written = {
        f"{_MODEL}.{key}": getattr(section, field) for key, field in ENGINE_OPTIONS[section.type].items()
    }
    if section.dtype == "model":
        written[f"{_MODEL}.dtype"] = run.model.compute_dtype or run.model.dtype
    given = {key: value for key, value in written.items() if value is not None}
    extra = {f"{_EXTRA}{name}": value for name, value in section.engine_kwargs.items()}
    return {f"{_MODEL}.engine_type": section.type, **given, **extra}


@written_by(write_engine)
def engine(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the options of a serving engine; none for the native sampler."""
    name = serving_engine(foreign)
    if name is None:
        return {}
    options = {field: foreign[f"{_MODEL}.{key}"] for key, field in ENGINE_OPTIONS[name].items()}
    extra = {key.removeprefix(_EXTRA): foreign[key] for key in foreign.written if key.startswith(_EXTRA)}
    if name == "vllm" and foreign[_EXPERTS]:
        extra["enable_expert_parallel"] = True
    if extra:
        options["engine_kwargs"] = extra
    return {f"rollout.engine.{field}": value for field, value in {"type": name, **options}.items()}


def _supported(key: str) -> SupportCheck:
    native = only(1) if key in _SIZES else never

    def check(foreign: ForeignValues, value: Any) -> bool:
        if serving_engine(foreign) is None:
            return native(foreign, value)
        return key != "dtype" or value in DTYPES

    return check


def engine_type_row() -> KeyMapping:
    """The row of `engine_type`."""
    return placement(
        f"{_MODEL}.engine_type",
        "vllm",
        NATIVE,
        value_type=STRING,
        supported=lambda foreign, value: serving_engine(foreign) is not None,
        fields=("rollout.engine.type",),
        read=engine,
    )


def extra_arguments_row() -> KeyMapping:
    """The row of the arguments that Trinity passes to the engine as they are."""
    return placement(
        f"{_EXTRA}*",
        UNSET,
        "the native sampler has no such option",
        value_type=ANY,
        supported=lambda foreign, value: serving_engine(foreign) is not None,
        fields=("rollout.engine.engine_kwargs",),
        read=engine,
    )


def _passed_only_to(engines: Collection[str]) -> InactiveCheck:
    """Check that an option is inactive with a serving engine to which Trinity does not pass it."""

    def inactive(foreign: ForeignValues) -> str | None:
        name = serving_engine(foreign)
        return None if name is None or name in engines else f"Trinity does not pass it to {name}"

    return inactive


def data_parallel_row(read: ReadFunction) -> KeyMapping:
    """The row of the number of data-parallel ranks, each of which is an engine of its own."""
    return placement(
        _DATA_PARALLEL,
        1,
        "each rank is an engine of its own; with --here, there is one engine",
        supported=_supported("data_parallel_size"),
        inactive=_passed_only_to(("vllm",)),
        fields=("rollout.pool.engines",),
        read=read,
    )


def expert_parallel_row() -> KeyMapping:
    """The row of the division of whole experts over an engine's GPUs."""
    return placement(
        _EXPERTS,
        False,
        NO_SHARDS,
        supported=lambda foreign, value: not value or serving_engine(foreign) is not None,
        inactive=_passed_only_to(("vllm",)),
        fields=("rollout.engine.engine_kwargs",),
        read=engine,
    )


def option_row(key: str, instead: str = NATIVE) -> KeyMapping:
    """The row of an option that decides a field of a serving engine; the native sampler does not use it."""
    field_of = {name: options[key] for name, options in ENGINE_OPTIONS.items() if key in options}
    return placement(
        f"{_MODEL}.{key}",
        _DEFAULTS[key],
        instead,
        value_type=ANY,
        supported=_supported(key),
        inactive=_passed_only_to(field_of),
        fields=tuple(f"rollout.engine.{field}" for field in dict.fromkeys(field_of.values())),
        read=engine,
    )
