"""Registry of inference engines: the implementation of each `rollout.engine.type`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import torch

from strop.config.schema.model import ModelConfig
from strop.config.schema.rollout import NativeEngineConfig
from strop.inference.native import NativeEngine
from strop.models.fused_storage import fuse_storage
from strop.models.loading import load_model
from strop.protocols import InferenceEngine, SharedWeights
from strop.workers.cleanup import cleanup

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

EngineConfig = NativeEngineConfig
"""Section `rollout.engine`; a union when there are more types."""

E = TypeVar("E", bound=InferenceEngine)


@dataclass(frozen=True, slots=True)
class EngineType:
    """Constructors of one type of engine; neither starts it."""

    attach: Callable[[EngineConfig, SharedWeights, PreTrainedTokenizerBase], InferenceEngine]
    """Build an engine on a model that is in this process, sharing its weights if possible."""
    load: Callable[[EngineConfig, ModelConfig, PreTrainedTokenizerBase, torch.device], InferenceEngine]
    """Build an engine that loads the model itself, onto this device; its weights have version 0."""


def _attach_native(
    section: EngineConfig, weights: SharedWeights, tokenizer: PreTrainedTokenizerBase
) -> InferenceEngine:
    return NativeEngine.from_weights(weights, section, tokenizer)


def _load_native(
    section: EngineConfig, model: ModelConfig, tokenizer: PreTrainedTokenizerBase, device: torch.device
) -> InferenceEngine:
    loaded = load_model(model, device=device, trainable=False)
    fuse_storage(loaded)
    return NativeEngine.from_model(loaded, section, tokenizer)


ENGINE_TYPES: Mapping[str, EngineType] = {
    "native": EngineType(attach=_attach_native, load=_load_native),
}
"""Engine type by the value of `type` in the section."""


def attach_engine(
    section: EngineConfig, weights: SharedWeights, tokenizer: PreTrainedTokenizerBase
) -> InferenceEngine:
    """Build the section's engine on a model in this process."""
    return ENGINE_TYPES[section.type].attach(section, weights, tokenizer)


def load_engine(
    section: EngineConfig, model: ModelConfig, tokenizer: PreTrainedTokenizerBase, device: torch.device
) -> InferenceEngine:
    """Build the section's engine, which loads the model onto a device."""
    return ENGINE_TYPES[section.type].load(section, model, tokenizer, device)


@contextmanager
def running_engine(engine: E) -> Iterator[E]:
    """Start an engine, and close it at the end of the block."""
    with cleanup(engine.close):
        engine.start()
        yield engine
