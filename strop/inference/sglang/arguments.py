"""Arguments of SGLang's engine from `rollout.engine` and the model's section, and the features that SGLang lacks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError
from transformers import PretrainedConfig

from strop.config.peft_adapter import adapter_options
from strop.config.schema.model import LoraConfig, ModelConfig
from strop.config.schema.rollout import SglangEngineConfig
from strop.errors import ConfigError, InferenceError
from strop.inference.serving.backend import (
    SERVING_CAPABILITIES,
    check_engine_kwargs,
    engine_dtype,
    given_options,
)
from strop.inference.sglang.library import CompletionStatistics
from strop.inference.weight_transfer.client import WeightOffer
from strop.protocols import EngineCapabilities
from strop.types import EngineStatistics

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
