"""Images of requests in the form that serving libraries take: one pad token and one decoded image each."""

from __future__ import annotations

from functools import lru_cache

from PIL import Image
from transformers import PretrainedConfig

from strop.config.image_families import GRID_FAMILIES
from strop.config.schema.data import ImagesConfig
from strop.config.schema.model import ModelConfig
from strop.errors import InferenceError, ModelError
from strop.models.vision.image_processor import GridImageProcessor
from strop.models.vision.model_images import ModelImages
from strop.types import SampleRequest

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
