"""Engines that benchmarks/engines.py measures; a module that the engines' processes can import."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoTokenizer

from strop.config.schema.model import ModelConfig
from strop.config.schema.rollout import NativeEngineConfig, SglangEngineConfig, VllmEngineConfig
from strop.inference.registry import load_engine
from strop.protocols import InferenceEngine

SECTIONS: dict[str, NativeEngineConfig | VllmEngineConfig | SglangEngineConfig] = {
    "native": NativeEngineConfig(),
    # vLLM's CPU build ends with an error when it splits the prompt of a seeded request; one forward pass takes all.
    "vLLM": VllmEngineConfig(
        max_model_len=512, max_num_batched_tokens=16384, engine_kwargs={"kv_cache_memory_bytes": 2**29}
    ),
    "SGLang": SglangEngineConfig(context_length=512, max_total_tokens=32768),
}
"""Section of each engine, by its name in the table."""


class EngineFactory:
    """Builds an engine on a model folder, in its process."""

    def __init__(self, name: str, folder: Path, dtype: str) -> None:
        self.section = SECTIONS[name].model_copy(update={"dtype": dtype})
        self.folder = folder

    def __call__(self) -> InferenceEngine:
        """Load tokenizer and model."""
        model = ModelConfig(path=str(self.folder))
        tokenizer = AutoTokenizer.from_pretrained(self.folder)
        return load_engine(self.section, model, tokenizer, torch.device("cpu"))
