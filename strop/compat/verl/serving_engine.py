"""Ledger rows of verl's options of serving engines: `actor_rollout_ref.rollout.name` and what applies to it.

Where `rollout.name` is set to vllm or sglang, they decide `rollout.engine`. With `--here`, and where the name is not
set, the native sampler answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

from strop.compat.ledger.key_mapping import (
    ForeignValues,
    KeyMapping,
    SupportCheck,
    placement,
    written_by,
)
from strop.compat.ledger.placement_notes import NATIVE_SAMPLER
from strop.compat.ledger.value_types import ValueType
from strop.config.schema import Run
from strop.config.schema.inference_engine import NativeEngineConfig, SglangEngineConfig, VllmEngineConfig

_ROLLOUT = "actor_rollout_ref.rollout"
DTYPES = {
    "bfloat16": "bfloat16",
    "bf16": "bfloat16",
    "float32": "float32",
    "fp32": "float32",
    "float": "float32",
}
HALF_DTYPES = ("float16", "fp16", "half")
_OPTIONS: Mapping[str, Mapping[str, str]] = {
    "vllm": {
        "tensor_model_parallel_size": "tensor_parallel",
        "gpu_memory_utilization": "gpu_memory_utilization",
        "max_num_batched_tokens": "max_num_batched_tokens",
        "max_num_seqs": "max_num_seqs",
        "max_model_len": "max_model_len",
        "enforce_eager": "enforce_eager",
        "enable_chunked_prefill": "enable_chunked_prefill",
        "enable_prefix_caching": "enable_prefix_caching",
        "pipeline_model_parallel_size": "pipeline_parallel",
        "quantization": "quantization",
    },
    "sglang": {
        "tensor_model_parallel_size": "tensor_parallel",
        "gpu_memory_utilization": "mem_fraction_static",
        "max_num_seqs": "max_running_requests",
        "enforce_eager": "disable_cuda_graph",
        "quantization": "quantization",
        "engine_kwargs.sglang.attention_backend": "attention_backend",
    },
}
"""Field of `rollout.engine` for each option that verl passes to an engine."""
_NOT_PASSED = {"vllm": ("swap_space",), "sglang": ("attention_backend",)}
"""Names in `engine_kwargs` that have a row of their own."""


def serving_engine(foreign: ForeignValues) -> str | None:
    """The serving engine that the configuration asks for and `--here` does not replace."""
    key = f"{_ROLLOUT}.name"
    asked = foreign.is_set(key) and foreign[key] in _OPTIONS and not foreign.here
    return foreign[key] if asked else None


def devices_per_engine(foreign: ForeignValues) -> int:
    """Number of GPUs of one engine; 1 for the native sampler."""
    name = serving_engine(foreign)
    sizes = ("tensor_model_parallel_size", "pipeline_model_parallel_size")
    passed = () if name is None else _OPTIONS[name].keys() & sizes
    return prod(int(foreign[f"{_ROLLOUT}.{size}"]) for size in passed)


def with_serving(native: SupportCheck) -> SupportCheck:
    """Check that supports every value with a serving engine, and otherwise those that the native sampler supports."""
    return lambda foreign, value: serving_engine(foreign) is not None or native(foreign, value)


def write_engine(run: Run) -> Mapping[str, Any]:
    """Write the options of a serving engine; of the native sampler, the number of sequences."""
    section = run.rollout.engine
    if isinstance(section, NativeEngineConfig):
        return {f"{_ROLLOUT}.max_num_seqs": section.max_sequences}
    if not isinstance(section, VllmEngineConfig | SglangEngineConfig):
        return {}
    name = section.type
    written = {f"{_ROLLOUT}.{key}": getattr(section, field) for key, field in _OPTIONS[name].items()}
    written |= {
        f"{_ROLLOUT}.engine_kwargs.{name}.{key}": value for key, value in section.engine_kwargs.items()
    }
    given = {key: value for key, value in written.items() if value is not None}
    return {f"{_ROLLOUT}.name": name, **given}


@written_by(write_engine)
def engine(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the options of a serving engine; for the native sampler, the number of sequences."""
    name = serving_engine(foreign)
    if name is None:
        return {"rollout.engine.max_sequences": foreign[f"{_ROLLOUT}.max_num_seqs"]}
    settings: dict[str, Any] = {"type": name}
    settings |= {field: foreign[f"{_ROLLOUT}.{key}"] for key, field in _OPTIONS[name].items()}
    prefix = f"{_ROLLOUT}.engine_kwargs.{name}."
    kwargs = {
        key.removeprefix(prefix): foreign[key]
        for key in foreign.written
        if key.startswith(prefix) and key.removeprefix(prefix) not in _NOT_PASSED[name]
    }
    if kwargs:
        settings["engine_kwargs"] = kwargs
    return {f"rollout.engine.{field}": value for field, value in settings.items()}


def serving_option(
    key: str,
    default: Any,
    *,
    native: SupportCheck,
    value_type: ValueType | None = None,
    instead: str = NATIVE_SAMPLER,
) -> KeyMapping:
    """The row of an option that decides a field of a serving engine; the native sampler does not use it."""
    fields = dict.fromkeys(
        f"rollout.engine.{options[key]}" for options in _OPTIONS.values() if key in options
    )

    def not_passed(foreign: ForeignValues) -> str | None:
        name = serving_engine(foreign)
        return f"verl does not pass it to {name}" if name is not None and key not in _OPTIONS[name] else None

    def unused(foreign: ForeignValues) -> str | None:
        value = foreign[f"{_ROLLOUT}.{key}"]
        is_unused = serving_engine(foreign) is None and value != default and native(foreign, value)
        return f"accepted without effect: {instead}" if is_unused else None

    row = placement(
        f"{_ROLLOUT}.{key}",
        default,
        instead,
        value_type=value_type,
        supported=with_serving(native),
        inactive=not_passed,
        fields=tuple(fields),
        read=engine,
    )
    return replace(row, warn=unused)


def write_precision(run: Run) -> Mapping[str, Any]:
    """Write the sampler's dtype, which is the trainer's compute dtype by default."""
    kind = getattr(run.rollout.engine, "dtype", "model")
    named = run.model.compute_dtype or run.model.dtype if kind == "model" else kind
    return {f"{_ROLLOUT}.dtype": named}


@written_by(write_precision)
def precision(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the sampler's dtype: bfloat16 or float32, with a serving engine float16 too; in place of another, the
    trainer's."""
    named = foreign[f"{_ROLLOUT}.dtype"]
    if named in HALF_DTYPES and serving_engine(foreign):
        return {"rollout.engine.dtype": "float16"}
    return {"rollout.engine.dtype": DTYPES.get(named, "model")}


def supports_dtype(foreign: ForeignValues, value: Any) -> bool:
    """Check of `rollout.dtype`."""
    return value in DTYPES or (value in HALF_DTYPES and serving_engine(foreign) is not None)
