"""Ledger rows of verl's options of vLLM: `actor_rollout_ref.rollout.name` and what applies to it.

Where `rollout.name=vllm` is set, they decide `rollout.engine`. With `--here`, and where the name is not set, the
native sampler answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.config.schema import Run
from strop.config.schema.inference_engine import NativeEngineConfig, VllmEngineConfig
from strop.dialects.ledger.key_mapping import (
    ForeignValues,
    KeyMapping,
    SupportCheck,
    placement,
    written_by,
)
from strop.dialects.ledger.placement_notes import NATIVE_SAMPLER
from strop.dialects.ledger.value_types import ValueType

_ROLLOUT = "actor_rollout_ref.rollout"
_KWARGS = f"{_ROLLOUT}.engine_kwargs.vllm"
DTYPES = {
    "bfloat16": "bfloat16",
    "bf16": "bfloat16",
    "float32": "float32",
    "fp32": "float32",
    "float": "float32",
}
HALF_DTYPES = ("float16", "fp16", "half")
_OPTIONS = {
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
}
"""Field of `rollout.engine` for each option."""


def uses_vllm(foreign: ForeignValues) -> bool:
    """Whether the configuration asks for vLLM, and `--here` does not replace it."""
    return foreign.is_set(f"{_ROLLOUT}.name") and foreign[f"{_ROLLOUT}.name"] == "vllm" and not foreign.here


def with_vllm(native: SupportCheck) -> SupportCheck:
    """Check that supports every value with vLLM, and otherwise those that the native sampler supports."""
    return lambda foreign, value: uses_vllm(foreign) or native(foreign, value)


def write_engine(run: Run) -> Mapping[str, Any]:
    """Write the options of vLLM; of the native sampler, the number of sequences."""
    section = run.rollout.engine
    if isinstance(section, NativeEngineConfig):
        return {f"{_ROLLOUT}.max_num_seqs": section.max_sequences}
    if not isinstance(section, VllmEngineConfig):
        return {}
    written = {f"{_ROLLOUT}.{key}": getattr(section, field) for key, field in _OPTIONS.items()}
    written |= {f"{_KWARGS}.{name}": value for name, value in section.engine_kwargs.items()}
    given = {key: value for key, value in written.items() if value is not None}
    return {f"{_ROLLOUT}.name": "vllm", **given}


@written_by(write_engine)
def engine(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the options of vLLM; for the native sampler, the number of sequences."""
    if not uses_vllm(foreign):
        return {"rollout.engine.max_sequences": foreign[f"{_ROLLOUT}.max_num_seqs"]}
    settings: dict[str, Any] = {"type": "vllm"}
    settings |= {field: foreign[f"{_ROLLOUT}.{key}"] for key, field in _OPTIONS.items()}
    kwargs = {
        key.removeprefix(f"{_KWARGS}."): foreign[key]
        for key in foreign.written
        if key.startswith(f"{_KWARGS}.") and key != f"{_KWARGS}.swap_space"
    }
    if kwargs:
        settings["engine_kwargs"] = kwargs
    return {f"rollout.engine.{field}": value for field, value in settings.items()}


def vllm_option(
    key: str,
    default: Any,
    *,
    native: SupportCheck,
    value_type: ValueType | None = None,
    instead: str = NATIVE_SAMPLER,
) -> KeyMapping:
    """The row of an option that decides a field of vLLM; the native sampler does not use it."""
    return placement(
        f"{_ROLLOUT}.{key}",
        default,
        instead,
        value_type=value_type,
        supported=with_vllm(native),
        fields=(f"rollout.engine.{_OPTIONS[key]}",),
        read=engine,
    )


def write_precision(run: Run) -> Mapping[str, Any]:
    """Write the sampler's dtype, which is the trainer's compute dtype by default."""
    kind = getattr(run.rollout.engine, "dtype", "model")
    named = run.model.compute_dtype or run.model.dtype if kind == "model" else kind
    return {f"{_ROLLOUT}.dtype": named}


@written_by(write_precision)
def precision(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the sampler's dtype: bfloat16 or float32, with vLLM float16 too; in place of another, the trainer's."""
    named = foreign[f"{_ROLLOUT}.dtype"]
    if named in HALF_DTYPES and uses_vllm(foreign):
        return {"rollout.engine.dtype": "float16"}
    return {"rollout.engine.dtype": DTYPES.get(named, "model")}


def supports_dtype(foreign: ForeignValues, value: Any) -> bool:
    """Check of `rollout.dtype`."""
    return value in DTYPES or (value in HALF_DTYPES and uses_vllm(foreign))
