"""The image processor of a run's model, loaded when the first images arrive."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from transformers.utils.hub import cached_file

from strop.config.paths import gguf_file
from strop.config.schema.data import ImagesConfig
from strop.config.schema.model import ModelConfig
from strop.models.loading import load_tokenizer
from strop.models.vision.image_processor import load_image_processor
from strop.protocols import ImageProcessor
from strop.types import Experience

PROCESSOR_FILES = (
    "preprocessor_config.json",
    "processor_config.json",
    "video_preprocessor_config.json",
    "chat_template.json",
)
"""Files of a model folder that belong to its image processor."""


def has_images(experiences: Sequence[Experience]) -> bool:
    """Whether any of the experiences has an image."""
    return any(experience.media for experience in experiences)


class ModelImages:
    """Image processor of the model of a section, with the limits of `data.images`."""

    def __init__(self, model: ModelConfig, limits: ImagesConfig) -> None:
        self._model = model
        self._limits = limits

    @cached_property
    def processor(self) -> ImageProcessor:
        """The processor. Raises `ModelError` as `load_image_processor` does."""
        return load_image_processor(
            self._model.path,
            load_tokenizer(self._model),
            min_pixels=self._limits.min_pixels,
            max_pixels=self._limits.max_pixels,
            trust_remote_code=self._model.trust_remote_code,
        )

    def copy_files(self, folder: Path) -> None:
        """Copy the files of the model's processor, if it has some, into an exported model."""
        if gguf_file(self._model.path) is not None:
            return
        for name in PROCESSOR_FILES:
            file = cached_file(self._model.path, name, _raise_exceptions_for_missing_entries=False)
            if file is not None:
                shutil.copyfile(file, folder / name)

    def processor_for(self, experiences: Sequence[Experience]) -> ImageProcessor | None:
        """The processor if any of the experiences has an image."""
        return self.processor if has_images(experiences) else None
