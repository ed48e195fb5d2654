"""Images of a run's prompts: reading them into the run's folder, and their places in the messages of a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from strop.config.schema.data import ImagesConfig
from strop.data.images.messages import media_of, place_images
from strop.data.images.store import ImageStore
from strop.data.images.values import image_bytes
from strop.errors import DataError
from strop.protocols import ImageProcessor
from strop.types import ImageReference, Message


@dataclass(frozen=True, slots=True)
class RunImages:
    """Images of a run whose model reads them: storage, processor and limits."""

    store: ImageStore
    """Folder in which they are stored."""
    processor: ImageProcessor
    """The model's processor."""
    settings: ImagesConfig
    """`data.images`"""

    def read(self, value: Any, where: str, base: str = "") -> ImageReference:
        """Read, check and store one image; `base` is where relative paths start. Raises `DataError`."""
        data = image_bytes(value, where, base=base, allow_urls=self.settings.allow_urls)
        reference = self.store.add(data, where)
        try:
            self.processor.token_count(reference.width, reference.height)
        except DataError as error:
            raise DataError(f"{where}: {error}") from None
        return reference

    def read_column(self, value: Any, where: str, base: str) -> tuple[ImageReference, ...]:
        """Read the images of a row's column: one, a list, or null for none. Raises `DataError`."""
        values = column_values(value)
        self._check_number(len(values), where)
        return tuple(self.read(one, f"{where}, image {number}", base) for number, one in enumerate(values, 1))

    def place(
        self, messages: Sequence[Message], images: Sequence[ImageReference] | None, where: str, base: str = ""
    ) -> tuple[Message, ...]:
        """Messages whose image parts all hold references. See `place_images`; raises `DataError`."""
        placed = place_images(
            messages,
            images,
            lambda value, place: self.read(value, place, base),
            where,
            marker=self.settings.marker,
            unmarked=self.settings.unmarked,
        )
        self._check_number(len(media_of(placed)), where)
        return placed

    def read_parts(self, messages: Sequence[Message], where: str) -> tuple[Message, ...]:
        """Messages of a workflow, a tool or a request: their image parts are read, and markers are text."""
        return place_images(messages, (), self.read, where, marker=None, unmarked="error")

    def _check_number(self, images: int, where: str) -> None:
        most = self.settings.max_images
        if most is not None and images > most:
            raise DataError(
                f"{where}: the prompt has {images} images, more than data.images.max_images ({most}). Write a higher "
                "limit, or remove the row."
            )


def column_values(value: Any) -> Sequence[Any]:
    """The images in the value of a column: one, a list, or null for none."""
    if value is None:
        return ()
    return value if isinstance(value, list | tuple) else (value,)
