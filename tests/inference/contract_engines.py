"""Inference engines that pass the contract, each with a constructor on a model folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

from strop.config.schema.model import ModelConfig
from strop.config.schema.rollout import SglangEngineConfig, VllmEngineConfig
from strop.inference.registry import load_engine
from strop.protocols import InferenceEngine
from tests.inference.helpers import NEEDS_SGLANG, NEEDS_VLLM, NativeFactory, pool_of


@dataclass(frozen=True)
class VllmFactory:
    """Builds a vLLM engine on a model folder, in another process."""

    folder: Path
    tensor_parallel: int = 1

    def __call__(self) -> InferenceEngine:
        section = VllmEngineConfig(
            tensor_parallel=self.tensor_parallel,
            max_model_len=512,
            enforce_eager=True,
            sleep_level=2,
            engine_kwargs={"kv_cache_memory_bytes": 2**26, "block_size": 32},
        )
        tokenizer = AutoTokenizer.from_pretrained(self.folder)
        return load_engine(section, ModelConfig(path=str(self.folder)), tokenizer, torch.device("cpu"))


@dataclass(frozen=True)
class SglangFactory:
    """Builds an SGLang engine on a model folder, in another process."""

    folder: Path
    tensor_parallel: int = 1

    def __call__(self) -> InferenceEngine:
        section = SglangEngineConfig(
            tensor_parallel=self.tensor_parallel,
            context_length=512,
            max_total_tokens=4096,
            enable_memory_saver=True,
        )
        tokenizer = AutoTokenizer.from_pretrained(self.folder)
        return load_engine(section, ModelConfig(path=str(self.folder)), tokenizer, torch.device("cpu"))


ENGINES: dict[str, tuple[str, Callable[[Path], InferenceEngine]]] = {
    "native": ("qwen2", lambda folder: NativeFactory(folder)()),
    "hugging face forward": ("gemma", lambda folder: NativeFactory(folder)()),
    "pool of 1": ("qwen2", lambda folder: pool_of(NativeFactory(folder))),
    "pool of 2 threads": ("qwen2", lambda folder: pool_of(NativeFactory(folder), 2)),
    "vllm": ("qwen2", lambda folder: pool_of(VllmFactory(folder))),
    "vllm tensor parallel 2": ("qwen3", lambda folder: pool_of(VllmFactory(folder, 2))),
    "sglang": ("qwen2", lambda folder: pool_of(SglangFactory(folder))),
    "sglang tensor parallel 2": ("qwen3", lambda folder: pool_of(SglangFactory(folder, 2))),
}
"""Model family and constructor of each implementation; the constructor does not start the engine."""
_VLLM = [pytest.mark.engines, pytest.mark.timeout(600), NEEDS_VLLM]
_SGLANG = [pytest.mark.engines, pytest.mark.timeout(600), NEEDS_SGLANG]
MARKS = {
    "hugging face forward": [pytest.mark.slow],
    "pool of 1": [pytest.mark.nightly],
    "vllm": _VLLM,
    "vllm tensor parallel 2": _VLLM,
    "sglang": _SGLANG,
    "sglang tensor parallel 2": _SGLANG,
}
"""When the tests of an implementation run, and what they need."""
