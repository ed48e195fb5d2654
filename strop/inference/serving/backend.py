"""Interface of a serving library to `ServingEngine`, with the options and images that libraries take alike."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from PIL import Image
from transformers import PretrainedConfig

from strop.config.model_files import GRID_FAMILIES
from strop.config.schema.data import ImagesConfig
from strop.config.schema.model import ModelConfig
from strop.config.schema.rollout import ServingEngineConfig
from strop.errors import ConfigError, EngineLostError, InferenceError, ModelError
from strop.inference.weight_transfer import WeightOffer
from strop.models.vision.image_processor import GridImageProcessor
from strop.models.vision.model_images import ModelImages
from strop.printable import did_you_mean
from strop.protocols import EngineCapabilities
from strop.types import Completion, EngineStatistics, SampleRequest

SERVING_CAPABILITIES = EngineCapabilities(
    weight_transports=frozenset(("tensors", "path")),
    determinism="none",
    filtered_policy_logprobs=False,
    converts_weights=True,
    adapters=False,
    images=False,
    memory_release=False,
    token_versions=True,
    prompt_logprobs=True,
)
"""Features of every serving library on a model without an adapter and without images; a backend adds its own."""


class ServingBackend(Protocol):
    """A serving library's engine. `ServingEngine` calls the coroutines and `take_statistics` in one event loop."""

    name: str
    """Name of the library in messages."""
    capabilities: EngineCapabilities
    """Features of the engine."""
    report_seconds: float
    """Maximum time from the failure of a call to the report of `lost` that a process has ended; 0 if it is never
    later."""

    async def start(self) -> None:
        """Start the library's processes, which load the model.

        Raises `MissingExtraError` without the library, `ConfigError` for arguments that it does not have, and
        `InferenceError` if it does not start.
        """
        ...

    async def close(self) -> None:
        """End the library's processes."""
        ...

    def describe(self) -> str:
        """One line: version, model, data type and parallel sizes."""
        ...

    def check(self, request: SampleRequest) -> None:
        """Raise `InferenceError` for a request that is invalid or that the library would change."""
        ...

    async def generate(self, request: SampleRequest) -> Completion:
        """The completion of a request, with the version of the weights of each token.

        Aborts the request when the awaiting task is cancelled.
        """
        ...

    async def load_weights(self, path: Path) -> None:
        """Load a safetensors file, or those of a folder, while decoding is held."""
        ...

    async def receivers(self) -> list[str | None]:
        """UUID of the GPU of each process that `receive_weights` receives in, None on the CPU; by rank."""
        ...

    async def receive_weights(self, offer: WeightOffer, host: str) -> list[str]:
        """Receive weights in each process, from `host`, while decoding is held; where `process_group` is a capability.

        Returns a reason for each process in which they have not arrived; these processes have a mixture of weights.
        """
        ...

    async def load_adapter(self, folder: Path, version: int) -> None:
        """Load a LoRA adapter in place of the last one, while decoding is held."""
        ...

    async def discard_cache(self) -> None:
        """Discard what was computed with the old weights, the KV cache of running completions included."""
        ...

    async def set_version(self, version: int) -> None:
        """Name the weights that were loaded, for the tokens that they sample."""
        ...

    async def abort(self) -> None:
        """Abort the requests that the library has; each ends with the tokens that it has."""
        ...

    async def hold(self) -> None:
        """Stop decoding after the current step; running requests keep their state."""
        ...

    async def release(self) -> None:
        """Continue decoding."""
        ...

    async def sleep(self) -> None:
        """Free the KV cache and the weights, where `memory_release` is a capability."""
        ...

    async def wake_up(self) -> None:
        """Allocate what `sleep` freed; decoding is held."""
        ...

    @property
    def keeps_weights(self) -> bool:
        """Whether the weights are there after `wake_up`; otherwise the next load brings all of them."""
        ...

    @property
    def processed_tokens(self) -> int | None:
        """See `InferenceEngine`."""
        ...

    def take_statistics(self) -> EngineStatistics:
        """Load since the last call."""
        ...

    def lost(self, error: Exception) -> EngineLostError | None:
        """The error to raise instead if a process of the library has ended, otherwise None."""
        ...


def given_options(section: ServingEngineConfig, names: Mapping[str, str]) -> dict[str, Any]:
    """The section's options under the library's names; an option without a value is left out.

    `names` has the library's name of each field.
    """
    options = {name: getattr(section, field) for field, name in names.items()}
    return {name: value for name, value in options.items() if value is not None}


def check_engine_kwargs(
    section: ServingEngineConfig,
    names: Mapping[str, str],
    *,
    set_by_strop: Collection[str],
    known: Collection[str],
    owner: str,
) -> None:
    """Raise `ConfigError` for an argument that the library does not have, and for one that Strop sets.

    `names` has the library's name of each field, `known` are the library's arguments, and `owner` is its class of
    arguments, for messages.
    """
    fields_of = {name: field for field, name in names.items()}
    for name in section.engine_kwargs:
        key = f"rollout.engine.engine_kwargs.{name}"
        if name in fields_of:
            raise ConfigError(f"{key} is set by a field of its own; write rollout.engine.{fields_of[name]}.")
        if name in set_by_strop:
            raise ConfigError(f"{key} is set by Strop and cannot be changed; remove it.")
        if name not in known:
            raise ConfigError(
                f"{key} is not an argument of the installed {owner}{did_you_mean(name, known) or '.'} Remove it, or "
                "write one of its names."
            )


def engine_dtype(section: ServingEngineConfig, model: ModelConfig) -> str:
    """Data type of the engine's weights and computation."""
    return section.dtype if section.dtype != "model" else model.compute_dtype or model.dtype


_KEPT = 256
"""Resized images that are kept for the other requests of their groups."""


def serves_images(config: PretrainedConfig) -> bool:
    """Whether serving libraries get a model's images from Strop.

    They scale the tiles of Idefics 3 and SmolVLM with another filter than the model's processor in training; Gemma 3
    and InternVL have not been tried.
    """
    return config.model_type in GRID_FAMILIES


def request_images(
    config: PretrainedConfig, model: ModelConfig, limits: ImagesConfig
) -> RequestImages | None:
    """Images for the model of a section; None for a model whose images are not served."""
    if not serves_images(config):
        return None
    _check_positions(config, model)
    return RequestImages(ModelImages(model, limits))


def _check_positions(config: PretrainedConfig, model: ModelConfig) -> None:
    """Raise `ModelError` for Qwen3-VL's positions in the order of its predecessors.

    transformers interleaves the parts of Qwen3-VL's positions always, a serving library only as config.json says: the
    engine would sample from another model than the one that is trained.
    """
    rope = getattr(config.get_text_config(), "rope_parameters", None) or {}
    if config.model_type == "qwen3_vl" and not rope.get("mrope_interleaved"):
        raise ModelError(
            f"{model.path}/config.json does not say `mrope_interleaved: true` in text_config.rope_parameters (in "
            "older files text_config.rope_scaling). Serving libraries would compute other positions than the trainer. "
            "Add it to the file, or write `rollout.engine: native`."
        )


class RequestImages:
    """Conversion of the images of sampling requests.

    The libraries expand each pad token themselves, and expand a run of them once more without an error; they therefore
    get one pad token per image. Each image is scaled here to the size that the trainer's processor gives it, so that
    the library's own processor leaves its pixels as they are.
    """

    def __init__(self, images: ModelImages) -> None:
        self._images = images
        self._resized = lru_cache(maxsize=_KEPT)(lambda reference: self.processor().resized(reference))

    def processor(self) -> GridImageProcessor:
        """The model's processor."""
        processor = self._images.processor
        assert isinstance(processor, GridImageProcessor)
        return processor

    def prompt_ids(self, request: SampleRequest) -> list[int]:
        """The request's prompt with one pad token for each image."""
        collapsed: list[int] = self.processor().collapse(request.prompt_ids, request.media).tolist()
        return collapsed

    def pixels(self, request: SampleRequest) -> list[Image.Image]:
        """The request's images, scaled. Raises `DataError` for a file that is missing or damaged."""
        return [self._resized(reference) for reference in request.media]


def check_expansion(request: SampleRequest, prompt_tokens: int, library: str) -> None:
    """Raise `InferenceError` unless a library's prompt of a request with images has as many tokens as Strop's."""
    if request.media and prompt_tokens != len(request.prompt_ids):
        raise InferenceError(
            f"request {request.id!r}: {library} gave its images another number of tokens than the model's processor "
            f"in training ({prompt_tokens} prompt tokens instead of {len(request.prompt_ids)}). Remove options of the "
            "image processor from rollout.engine.engine_kwargs; limits are data.images.min_pixels and max_pixels."
        )
