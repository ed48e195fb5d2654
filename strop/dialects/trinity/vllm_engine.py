"""Ledger rows of Trinity's options of vLLM, in `explorer.rollout_model`.

Where `engine_type` is set to vLLM, they decide `rollout.engine`. With `--here`, and where the type is not set, the
native sampler answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.config.schema import Run
from strop.config.schema.inference_engine import VllmEngineConfig
from strop.dialects.ledger.key_mapping import (
    ForeignValues,
    KeyMapping,
    SupportCheck,
    never,
    only,
    placement,
    written_by,
)
from strop.dialects.ledger.value_types import ANY, STRING

NATIVE = "the native sampler in the trainer's process"
_MODEL = "explorer.rollout_model"
_TYPES = ("vllm", "vllm_async")
_DTYPES = ("bfloat16", "float16", "float32")
_OPTIONS: Mapping[str, tuple[str, Any]] = {
    "tensor_parallel_size": ("tensor_parallel", 1),
    "enable_prefix_caching": ("enable_prefix_caching", True),
    "enforce_eager": ("enforce_eager", True),
    "dtype": ("dtype", "bfloat16"),
    "seed": ("seed", 42),
    "gpu_memory_utilization": ("gpu_memory_utilization", 0.9),
    "enable_chunked_prefill": ("enable_chunked_prefill", False),
}
"""Field of `rollout.engine` and default of each option."""


def uses_vllm(foreign: ForeignValues) -> bool:
    """Whether the configuration asks for vLLM, and `--here` does not replace it."""
    key = f"{_MODEL}.engine_type"
    return foreign.is_set(key) and foreign[key] in _TYPES and not foreign.here


def write_engine(run: Run) -> Mapping[str, Any]:
    """Write the options of vLLM; none for another engine."""
    section = run.rollout.engine
    if not isinstance(section, VllmEngineConfig):
        return {}
    written = {f"{_MODEL}.{key}": getattr(section, field) for key, (field, _) in _OPTIONS.items()}
    if section.dtype == "model":
        written[f"{_MODEL}.dtype"] = run.model.compute_dtype or run.model.dtype
    given = {key: value for key, value in written.items() if value is not None}
    return {f"{_MODEL}.engine_type": "vllm", **given}


@written_by(write_engine)
def engine(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the options of vLLM; none for the native sampler."""
    if not uses_vllm(foreign):
        return {}
    options = {field: foreign[f"{_MODEL}.{key}"] for key, (field, _) in _OPTIONS.items()}
    return {f"rollout.engine.{field}": value for field, value in {"type": "vllm", **options}.items()}


def _supported(key: str) -> SupportCheck:
    native = only(1) if key == "tensor_parallel_size" else never

    def check(foreign: ForeignValues, value: Any) -> bool:
        if not uses_vllm(foreign):
            return native(foreign, value)
        return key != "dtype" or value in _DTYPES

    return check


def engine_type_row() -> KeyMapping:
    """The row of `engine_type`."""
    return placement(
        f"{_MODEL}.engine_type",
        "vllm",
        NATIVE,
        value_type=STRING,
        supported=lambda foreign, value: uses_vllm(foreign),
        fields=("rollout.engine.type",),
        read=engine,
    )


def option_row(key: str, instead: str = NATIVE) -> KeyMapping:
    """The row of an option that decides a field of vLLM; the native sampler does not use it."""
    field, default = _OPTIONS[key]
    return placement(
        f"{_MODEL}.{key}",
        default,
        instead,
        value_type=ANY,
        supported=_supported(key),
        fields=(f"rollout.engine.{field}",),
        read=engine,
    )
