"""Check of an encoded image, and its conversion to a form that every reader decodes alike."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Literal

from strop.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

_SUFFIXES: dict[str | None, Literal["png", "jpg", "webp"]] = {
    "PNG": "png",
    "JPEG": "jpg",
    "MPO": "jpg",
    "WEBP": "webp",
}
"""Formats that are stored as they are; any other becomes PNG. MPO is a photograph's JPEG with a preview after it."""
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000", "AVIF")
"""Formats that are decoded, by Pillow's names. Others of Pillow are left out: for EPS it starts Ghostscript, which
executes the file's program."""
_PLAIN_MODES = ("RGB", "L")
_EXIF_ORIENTATION = 0x0112
MAX_PIXELS = 89_478_485
"""Number of pixels of the largest image that is decoded: 256 MiB in RGB."""


@dataclass(frozen=True, slots=True)
class ImageFile:
    """An encoded image: upright, RGB or grayscale, without transparency, one frame."""

    data: bytes
    suffix: str
    """End of its file name: `png`, `jpg` or `webp`."""
    width: int
    height: int


def check_image(data: bytes, where: str) -> ImageFile:
    """Decode an image once, and convert it where readers would differ; the data stay as they are where they would not.

    EXIF orientation is applied, transparent pixels become white, 16-bit gray becomes 8-bit. Raises `DataError`, which
    names the place, for data that are no image, truncated, animated or too large.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # the limit below is an error
            Image.init()
            formats = [name for name in _FORMATS if name in Image.OPEN]  # AVIF is a part of newer versions
            opened = Image.open(BytesIO(data), formats=formats)
        with opened:
            _require_usable(opened, where)
            opened.load()
            return _converted(opened, data)
    except UnidentifiedImageError:
        raise DataError(
            f"{where} is no image that Strop reads: its {len(data)} bytes begin with {data[:8]!r}. Write PNG, JPEG "
            "or WebP, or remove the row."
        ) from None
    except Image.DecompressionBombError:  # of an image of twice its own limit, which Pillow does not open
        raise DataError(
            f"{where} has more pixels than Strop decodes ({MAX_PIXELS:,}). Reduce it before training."
        ) from None
    except (OSError, SyntaxError, ValueError, EOFError) as error:
        raise DataError(
            f"{where} cannot be decoded ({error}). The data are truncated or damaged; write the image again, or "
            "remove the row."
        ) from None


def encode_png(image: Image) -> bytes:
    """A decoded image as PNG."""
    data = BytesIO()
    image.save(data, "PNG")
    return data.getvalue()


def _require_usable(image: Image, where: str) -> None:
    if image.width * image.height > MAX_PIXELS:
        raise DataError(
            f"{where} has {image.width} x {image.height} pixels, more than Strop decodes ({MAX_PIXELS:,}). Reduce it "
            "before training."
        )
    frames = getattr(image, "n_frames", 1)
    if frames > 1 and image.format != "MPO":
        raise DataError(
            f"{where} is an animation of {frames} frames. Strop trains on single images; write one frame, or several "
            "images."
        )


def _converted(image: Image, data: bytes) -> ImageFile:
    from PIL import ImageOps

    is_rotated = image.getexif().get(_EXIF_ORIENTATION, 1) != 1
    is_plain = image.mode in _PLAIN_MODES and not image.has_transparency_data
    if is_plain and not is_rotated and image.format in _SUFFIXES:
        return ImageFile(data, _SUFFIXES[image.format], image.width, image.height)
    # Both copy the image also where nothing changes, and a large one has hundreds of megabytes.
    upright = _without_transparency(ImageOps.exif_transpose(image) if is_rotated else image)
    return ImageFile(encode_png(upright), "png", upright.width, upright.height)


def _without_transparency(image: Image) -> Image:
    from PIL import Image as images

    if image.has_transparency_data:
        rgba = image if image.mode == "RGBA" else image.convert("RGBA")
        return images.alpha_composite(images.new("RGBA", rgba.size, "white"), rgba).convert("RGB")
    if image.mode.startswith("I"):
        return image.convert("I").point(lambda value: value / 256).convert("L")
    return image if image.mode == "L" else image.convert("RGB")
