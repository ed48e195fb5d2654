"""Inference engines that pass the contract, each with a constructor on a model folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from strop.config.schema.inference_engine import NativeEngineConfig, SglangEngineConfig, VllmEngineConfig
from strop.config.schema.model import ModelConfig
from strop.inference.native import NativeEngine
from strop.inference.pool import EnginePool, EngineSpec
from strop.inference.registry import load_engine
from strop.protocols import InferenceEngine
from strop.workers.start import LocalPlacement
from tests.inference.helpers import NEEDS_SGLANG, NEEDS_VLLM


@dataclass(frozen=True)
class NativeFactory:
    """Builds a native engine on a model folder, also in another process."""

    folder: Path

    def __call__(self) -> NativeEngine:
        torch.set_num_threads(1)
        model = AutoModelForCausalLM.from_pretrained(self.folder)
        tokenizer = AutoTokenizer.from_pretrained(self.folder)
        return NativeEngine.from_model(model, NativeEngineConfig(kv_cache_tokens=4096), tokenizer)


def pool_of(engines: int) -> Callable[[Path], EnginePool]:
    def build(folder: Path) -> EnginePool:
        specs = [EngineSpec(f"engine-{number}", NativeFactory(folder)) for number in range(engines)]
        return EnginePool(specs, LocalPlacement(), max_restarts=0)

    return build


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


def serving(factory: type[VllmFactory | SglangFactory], tensor_parallel: int) -> Callable[[Path], EnginePool]:
    def build(folder: Path) -> EnginePool:
        spec = EngineSpec("engine-0", factory(folder, tensor_parallel))
        return EnginePool([spec], LocalPlacement(), max_restarts=0)

    return build


ENGINES: dict[str, tuple[str, Callable[[Path], InferenceEngine]]] = {
    "native": ("qwen2", lambda folder: NativeFactory(folder)()),
    "hugging face forward": ("gemma", lambda folder: NativeFactory(folder)()),
    "pool of 1": ("qwen2", pool_of(1)),
    "pool of 2": ("qwen2", pool_of(2)),
    "vllm": ("qwen2", serving(VllmFactory, 1)),
    "vllm tensor parallel 2": ("qwen3", serving(VllmFactory, 2)),
    "sglang": ("qwen2", serving(SglangFactory, 1)),
    "sglang tensor parallel 2": ("qwen3", serving(SglangFactory, 2)),
}
"""Model family and constructor of each implementation; the constructor does not start the engine."""
SERVING = {"vllm": NEEDS_VLLM, "sglang": NEEDS_SGLANG}
"""Condition of the tests of each serving library, by the first word of the implementation's name."""
