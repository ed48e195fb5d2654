"""Images of a run's prompts: their values in rows, which are encoded bytes, paths, URLs, mappings of these and decoded
images; reading them into the run's folder; and their places in the messages of a row.
"""

from __future__ import annotations

import base64
import posixpath
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from strop.config.redact import redact_text
from strop.config.schema.data import ImagesConfig, TasksetConfig
from strop.data.encoding.chat_template import ChatPrompt
from strop.data.images.messages import (
    is_unmarked_text,
    media_of,
    mentions_images,
    other_media_marker,
    place_images,
)
from strop.data.images.store import ImageStore, encode_png
from strop.data.progress_bar import with_progress_bar
from strop.data.sources.columns import optional_value_at
from strop.data.sources.data_path import DataPath, first_line, resolve_path
from strop.data.sources.rows import DatasetRows
from strop.errors import DataError
from strop.protocols import ImageProcessor
from strop.types import ImageReference, Message
from strop.workers.files import read_regular


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


_CONTENT_KEYS = ("bytes", "image", "path", "image_url", "url")
"""Keys of a mapping that hold the image; the first one that is not null counts."""
_NEUTRAL_KEYS = ("type", "detail")
"""Keys that a content part has in addition to the image."""
MAX_BYTES = 256 << 20
"""Maximum size of an encoded image: that of the largest one that is decoded, without compression."""
_FETCH_SECONDS = 60.0
"""Maximum time for the body of an HTTP response."""
_CHUNK_BYTES = 1 << 20


def image_bytes(value: Any, where: str, *, base: str, allow_urls: bool) -> bytes:
    """The encoded image that a value holds or names. Raises `DataError`, which names the place.

    Args:
        base: folder or URL to which relative paths refer; empty for the working directory.
        allow_urls: whether a URL is read; see `data.images.allow_urls`.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        return _bounded(bytes(value), where)
    if isinstance(value, str):
        return _read(value, where, base, allow_urls)
    if isinstance(value, Mapping):
        return image_bytes(_content(value, where), where, base=base, allow_urls=allow_urls)
    from PIL.Image import Image

    if isinstance(value, Image):
        return encode_png(value)
    raise DataError(
        f"{where} has the type {type(value).__name__}. An image must be encoded bytes, a path, or a mapping with "
        "`bytes` or `path`, as `datasets` writes it."
    )


def _content(value: Mapping[str, Any], where: str) -> Any:
    found = next((value[key] for key in _CONTENT_KEYS if value.get(key) is not None), None)
    other = [
        key for key, item in value.items() if item is not None and key not in _CONTENT_KEYS + _NEUTRAL_KEYS
    ]
    if other:
        raise DataError(
            f"{where} has the key {other[0]!r}, which Strop does not apply to single images. Remove it; limits on the "
            "size of all images are data.images.min_pixels and max_pixels."
        )
    if found is None:
        raise DataError(
            f"{where} has no image: its keys are {', '.join(value) or 'none'}. Write `bytes` with the encoded image, "
            "or `path`."
        )
    return found


def _read(text: str, where: str, base: str, allow_urls: bool) -> bytes:
    if text.startswith("data:"):
        return _decoded(text, where)
    path = text.removeprefix("file://")
    shown = redact_text(path if len(path) <= 200 else f"{path[:197]}...")
    if "://" in path and not allow_urls:
        raise DataError(
            f"{where} is the URL {shown}, and data.images.allow_urls is false. Write true to read images from URLs, "
            "or store the images with the data."
        )
    is_relative = "://" not in path and not path.startswith(("/", "~"))
    try:
        place = resolve_path(posixpath.join(base, path) if base and is_relative else path)
        with place.access():
            data = _content_at(place)
    except FileNotFoundError:
        raise DataError(f"{where}: there is no file {shown}.") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{where}: {shown} cannot be read ({first_line(error)}).") from None
    return _bounded(data, where)


def _content_at(place: DataPath) -> bytes:
    """The content of a file, or its first bytes up to one more than the limit.

    Raises OSError and ValueError for what cannot be read: also for a FIFO or a device, which a row may name.
    """
    if place.filesystem.protocol[0] == "file":
        return read_regular(Path(place.path), MAX_BYTES + 1)
    if "http" in place.filesystem.protocol:
        return _fetched(place)
    if (place.size_bytes() or 0) > MAX_BYTES:
        raise OSError(f"it has more than {MAX_BYTES:,} bytes")
    return bytes(place.filesystem.cat_file(place.path))


def _fetched(place: DataPath) -> bytes:
    """The body of an HTTP response as it arrives, because a server may state another size, or none."""
    parts, size, deadline = [], 0, time.monotonic() + _FETCH_SECONDS
    # A block size of 0 is a stream; without a size, fsspec asks for it first, and calls every failure of that a
    # missing file.
    with place.filesystem.open(place.path, "rb", block_size=0, size=1) as body:
        while size <= MAX_BYTES and (part := body.read(_CHUNK_BYTES)):
            parts.append(part)
            size += len(part)
            if time.monotonic() > deadline:
                raise TimeoutError(f"the server has sent {size:,} bytes in {_FETCH_SECONDS:g} s, and no end")
    return b"".join(parts)


def _bounded(data: bytes, where: str) -> bytes:
    if len(data) > MAX_BYTES:
        raise DataError(
            f"{where} has more than {MAX_BYTES:,} bytes, and Strop reads no larger image. Reduce it before training."
        )
    return data


def _decoded(url: str, where: str) -> bytes:
    """The content of a `data:` URL."""
    kind, _, content = url.removeprefix("data:").partition(",")
    if not kind.endswith(";base64"):
        raise DataError(f"{where} is a data URL without base64. Write data:image/png;base64,...")
    try:
        return _bounded(base64.b64decode(content, validate=True), where)
    except ValueError as error:  # also for characters that are not ASCII
        raise DataError(f"{where} is a data URL whose content is not base64 ({error}).") from None
