"""Values of images in rows and messages: encoded bytes, paths, URLs, mappings of these, and decoded images."""

from __future__ import annotations

import base64
import posixpath
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from strop.config.redact import redact_text
from strop.data.images.store import encode_png
from strop.data.sources.data_path import DataPath, first_line, resolve_path
from strop.errors import DataError
from strop.workers.files import read_regular

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
