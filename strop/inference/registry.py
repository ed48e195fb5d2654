"""Registry of inference engines: the implementation of each `rollout.engine.type`.

An implementation is imported when an engine of its type is built, so that a run pays for no other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from strop.config.model_files import is_quantized
from strop.config.schema.data import ImagesConfig
from strop.config.schema.model import ModelConfig
from strop.config.schema.rollout import (
    AutoEngineConfig,
    InferenceEngineConfig,
    NativeEngineConfig,
    OpenAiEngineConfig,
    SglangEngineConfig,
    SglangServerConfig,
    VllmEngineConfig,
)
from strop.data.encoding.model_tokens import eos_token_ids
from strop.errors import InferenceError
from strop.inference.native import NativeEngine
from strop.models.loading import load_config, load_generation_config, load_model
from strop.models.shared_weights import MappedWeights, fuse_storage, model_weights
from strop.models.vision.embedding import takes_images
from strop.models.vision.model_images import ModelImages
from strop.protocols import InferenceEngine, SharedWeights
from strop.workers.cleanup import cleanup

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

EngineConfig = (
    NativeEngineConfig | VllmEngineConfig | SglangEngineConfig | SglangServerConfig | OpenAiEngineConfig
)
"""Section `rollout.engine` after `choose_engine`."""

E = TypeVar("E", bound=InferenceEngine)


@dataclass(frozen=True, slots=True)
class EngineType:
    """Constructors of one type of engine; neither starts it."""

    attach: Callable[[Any, SharedWeights, PreTrainedTokenizerBase], InferenceEngine] | None
    """Build an engine on a model that is in this process, sharing its weights if possible; None for an engine
    that runs in a process of its own."""
    load: Callable[[Any, ModelConfig, PreTrainedTokenizerBase, torch.device, ImagesConfig], InferenceEngine]
    """Build an engine that loads the model itself, onto this device; its weights have version 0."""


def _attach_native(
    section: NativeEngineConfig, weights: SharedWeights, tokenizer: PreTrainedTokenizerBase
) -> InferenceEngine:
    return NativeEngine.from_weights(weights, section, tokenizer)


def _load_native(
    section: NativeEngineConfig,
    model: ModelConfig,
    tokenizer: PreTrainedTokenizerBase,
    device: torch.device,
    images: ImagesConfig,
) -> InferenceEngine:
    loaded = load_model(model, device=device, trainable=False)
    fuse_storage(loaded)
    model_images = ModelImages(model, images)
    weights = model_weights(loaded, image_processor=lambda: model_images.processor)
    engine = NativeEngine.from_weights(weights, section, tokenizer)
    # In place are this engine's own weights, and not the trainer's.
    engine.capabilities = replace(engine.capabilities, weights_in_place=False)
    return engine


def _load_vllm(
    section: VllmEngineConfig,
    model: ModelConfig,
    tokenizer: PreTrainedTokenizerBase,
    device: torch.device,
    images: ImagesConfig,
) -> InferenceEngine:
    from strop.inference.serving import ServingEngine
    from strop.inference.vllm import VllmBackend

    return ServingEngine(VllmBackend(section, model, tokenizer, images))


def _load_sglang(
    section: SglangEngineConfig,
    model: ModelConfig,
    tokenizer: PreTrainedTokenizerBase,
    device: torch.device,
    images: ImagesConfig,
) -> InferenceEngine:
    from strop.inference.serving import ServingEngine
    from strop.inference.sglang import SglangBackend

    return ServingEngine(SglangBackend(section, model, tokenizer, device, images))


def _load_sglang_server(
    section: SglangServerConfig,
    model: ModelConfig,
    tokenizer: PreTrainedTokenizerBase,
    device: torch.device,
    images: ImagesConfig,
) -> InferenceEngine:
    from strop.inference.serving import ServingEngine
    from strop.inference.sglang import SglangServerBackend

    return ServingEngine(SglangServerBackend(section, model, tokenizer))


def _attach_server(
    section: OpenAiEngineConfig, weights: SharedWeights, tokenizer: PreTrainedTokenizerBase
) -> InferenceEngine:
    return _server(section, weights.config, weights.generation_config, tokenizer)


def _load_server(
    section: OpenAiEngineConfig,
    model: ModelConfig,
    tokenizer: PreTrainedTokenizerBase,
    device: torch.device,
    images: ImagesConfig,
) -> InferenceEngine:
    return _server(section, load_config(model), load_generation_config(model), tokenizer)


def _server(
    section: OpenAiEngineConfig, config: Any, generation_config: Any, tokenizer: PreTrainedTokenizerBase
) -> InferenceEngine:
    from strop.inference.openai import OpenAiEngine

    vocab_size = int(config.get_text_config().vocab_size)
    eos_ids = eos_token_ids(config, generation_config, tokenizer)
    return OpenAiEngine(section, tokenizer, vocab_size=vocab_size, eos_ids=eos_ids)


ENGINE_TYPES: Mapping[str, EngineType] = {
    "native": EngineType(attach=_attach_native, load=_load_native),
    "vllm": EngineType(attach=None, load=_load_vllm),
    "sglang": EngineType(attach=None, load=_load_sglang),
    "sglang_server": EngineType(attach=None, load=_load_sglang_server),
    "openai": EngineType(attach=_attach_server, load=_load_server),
}
"""Engine type by the value of `type` in the section."""


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """The engine of a section, after `auto` has been decided on this machine."""

    section: EngineConfig
    reason: str
    """Reason for the choice, where the section says `auto`; otherwise empty."""


def choose_engine(section: InferenceEngineConfig, model: ModelConfig) -> EngineChoice:
    """Decide `rollout.engine: auto` for a model on this machine; other sections are unchanged."""
    if not isinstance(section, AutoEngineConfig):
        return EngineChoice(section, "")
    if not torch.cuda.is_available():
        return EngineChoice(section.native, "rollout.engine: auto uses the native sampler: there is no GPU")
    from strop.inference.serving.backend import serves_images
    from strop.inference.vllm.library import is_vllm_installed

    if not is_vllm_installed():
        return EngineChoice(
            section.native,
            "rollout.engine: auto uses the native sampler: vLLM is not installed (pip install 'strop[vllm]')",
        )
    if is_quantized(model):
        return EngineChoice(
            section.native, "rollout.engine: auto uses the native sampler: the model's weights are quantized"
        )
    config = load_config(model)
    if takes_images(config) and not serves_images(config):
        return EngineChoice(
            section.native,
            f"rollout.engine: auto uses the native sampler: the vLLM engine takes no images for {config.model_type}",
        )
    return EngineChoice(section.vllm, "rollout.engine: auto uses vLLM: there is a GPU")


def runs_in_own_process(section: EngineConfig) -> bool:
    """Whether the section's engine cannot share the weights of a model in this process."""
    return ENGINE_TYPES[section.type].attach is None


def attach_engine(
    section: EngineConfig, weights: SharedWeights, tokenizer: PreTrainedTokenizerBase
) -> InferenceEngine:
    """Build the section's engine on a model in this process. Raises `InferenceError` if it cannot share one."""
    attach = ENGINE_TYPES[section.type].attach
    if attach is None:
        raise InferenceError(f"the engine {section.type} cannot share the weights of a model in this process")
    return attach(section, weights, tokenizer)


@dataclass(frozen=True, slots=True)
class MappedEngineFactory:
    """Builds an engine on weights that are mapped in another process, to which it is sent."""

    section: EngineConfig
    weights: MappedWeights
    tokenizer: PreTrainedTokenizerBase
    model: ModelConfig
    images: ImagesConfig

    def __call__(self) -> InferenceEngine:
        """Map the weights."""
        torch.set_num_threads(self.weights.threads)
        images = ModelImages(self.model, self.images)
        return attach_engine(self.section, self.weights.open(lambda: images.processor), self.tokenizer)


def load_engine(
    section: EngineConfig,
    model: ModelConfig,
    tokenizer: PreTrainedTokenizerBase,
    device: torch.device,
    images: ImagesConfig | None = None,
) -> InferenceEngine:
    """Build the section's engine, which loads the model onto a device.

    `images` limits the images of prompts; None leaves the limits to the model.
    """
    return ENGINE_TYPES[section.type].load(section, model, tokenizer, device, images or ImagesConfig())


@contextmanager
def running_engine(engine: E) -> Iterator[E]:
    """Start an engine, and close it at the end of the block."""
    with cleanup(engine.close):
        engine.start()
        yield engine
