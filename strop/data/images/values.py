"""Values of images in rows and messages: encoded bytes, paths, URLs, mappings of these, and decoded images."""

from __future__ import annotations

import base64
import binascii
import posixpath
from collections.abc import Mapping
from typing import Any

from strop.config.redact import redact_text
from strop.data.images.files import encode_png
from strop.data.sources.data_path import resolve_path
from strop.errors import DataError

_CONTENT_KEYS = ("bytes", "image", "path", "image_url", "url")
"""Keys of a mapping that hold the image; the first one that is not null counts."""
_NEUTRAL_KEYS = ("type", "detail")
"""Keys that a content part has in addition to the image."""


def image_bytes(value: Any, where: str, *, base: str, allow_urls: bool) -> bytes:
    """The encoded image that a value holds or names. Raises `DataError`, which names the place.

    Args:
        base: folder or URL to which relative paths refer; empty for the working directory.
        allow_urls: whether a URL is read; see `data.images.allow_urls`.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
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
    place = resolve_path(posixpath.join(base, path) if base and is_relative else path)
    try:
        return bytes(place.filesystem.cat_file(place.path))
    except FileNotFoundError:
        raise DataError(f"{where}: there is no file {place.display_path}.") from None
    except OSError as error:
        raise DataError(f"{where}: {place.display_path} cannot be read ({error}).") from None


def _decoded(url: str, where: str) -> bytes:
    """The content of a `data:` URL."""
    kind, _, content = url.removeprefix("data:").partition(",")
    if not kind.endswith(";base64"):
        raise DataError(f"{where} is a data URL without base64. Write data:image/png;base64,...")
    try:
        return base64.b64decode(content, validate=True)
    except binascii.Error as error:
        raise DataError(f"{where} is a data URL whose content is not base64 ({error}).") from None
