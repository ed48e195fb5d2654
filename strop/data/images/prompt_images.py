"""Images of a run's prompts: reading them into the run's folder, and their places in the messages of a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from strop.config.schema.data import ImagesConfig, TasksetConfig
from strop.data.encoding.chat_template import ChatPrompt
from strop.data.images.messages import (
    is_unmarked_text,
    media_of,
    mentions_images,
    other_media_marker,
    place_images,
)
from strop.data.images.store import ImageStore
from strop.data.images.values import image_bytes
from strop.data.progress_bar import with_progress_bar
from strop.data.sources.columns import optional_value_at
from strop.data.sources.rows import DatasetRows
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


@dataclass(frozen=True, slots=True)
class RowImages:
    """The images of each row's column, and their places in the row's messages."""

    settings: ImagesConfig
    """`data.images`"""
    rows: DatasetRows
    columns: tuple[tuple[ImageReference, ...], ...] | None
    """Images of each row; None for a taskset without a column of images."""
    images: RunImages | None
    """Images of the run's prompts; None if the model reads text only."""

    def of_column(self, number: int) -> tuple[ImageReference, ...] | None:
        """Images of a row's column; None for a taskset without such a column."""
        return None if self.columns is None else self.columns[number]

    def place(self, prompt: ChatPrompt, number: int) -> ChatPrompt:
        """The prompt of a row with its images at their places. Raises `DataError`."""
        messages = self.place_in(prompt.messages, prompt.where, number)
        return prompt if messages is prompt.messages else replace(prompt, messages=messages)

    def place_in(self, messages: Sequence[Message], where: str, number: int) -> tuple[Message, ...]:
        """Messages of a row with its images at their places. Raises `DataError`."""
        if self.images is None and is_unmarked_text(messages, self.settings.marker):
            return tuple(messages)
        if self.settings.marker is not None and (other := other_media_marker(messages)) is not None:
            raise DataError(
                f"{where}: the messages have the marker {other!r}, but Strop trains on text and images only, and the "
                "model would be trained on the marker as text. Remove such rows; if the marker is ordinary text, write "
                "data.images.marker: null, and content parts of type image where images belong."
            )
        if self.images is not None:
            return self.images.place(messages, self.of_column(number), where, self.rows.folder(number))
        if mentions_images(messages, self.settings.marker):
            raise DataError(
                f"{where}: the messages have a place for an image (the marker {self.settings.marker!r}, or a part of "
                "type image), but the model reads text only, and would be trained on the marker as text. Use a model "
                "that reads images; if the marker is ordinary text, write data.images.marker: null."
            )
        return tuple(messages)


def read_row_images(
    rows: DatasetRows,
    section: TasksetConfig,
    settings: ImagesConfig,
    images: RunImages | None,
    name: str,
) -> RowImages:
    """Read, check and store the images of every row. Raises `DataError`, which names the row."""
    if section.images is None:
        return RowImages(settings, rows, None, images)
    columns = []
    scanned = with_progress_bar(rows.scan([section.images]), len(rows), f"Reading the images of {name}")
    for number, row in enumerate(scanned):
        where = rows.where(number)
        value = optional_value_at(row, section.images, where, section)
        if images is not None:
            columns.append(images.read_column(value, where, rows.folder(number)))
        elif column_values(value):
            raise DataError(
                f"{where} has images (column {section.images!r}), but the model reads text only. Use a model that "
                "reads images, or remove `images` from the taskset."
            )
    return RowImages(settings, rows, None if images is None else tuple(columns), images)
