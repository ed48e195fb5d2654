"""Folder of a run's images: each distinct image is checked and stored once, under its digest.

An image that is stored has a form that every reader decodes alike.
"""

from __future__ import annotations

import hashlib
import threading
import warnings
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from strop.errors import DataError
from strop.types import ImageReference
from strop.workers.files import temporary_path

if TYPE_CHECKING:
    from PIL.Image import Image


_FORMAT_SUFFIXES: dict[str | None, Literal["png", "jpg", "webp"]] = {
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
_SUFFIXES = tuple(dict.fromkeys(_FORMAT_SUFFIXES.values()))


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
    if is_plain and not is_rotated and image.format in _FORMAT_SUFFIXES:
        return ImageFile(data, _FORMAT_SUFFIXES[image.format], image.width, image.height)
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


class ImageStore:
    """Writes images to `<folder>/<sha256>.<png|jpg|webp>`. Thread-safe; several processes may share the folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, ImageReference] = {}
        self._lock = threading.Lock()

    def add(self, data: bytes, where: str) -> ImageReference:
        """The reference to an encoded image, which is stored unless it is already.

        Raises `DataError`, which names the place, for data that are no usable image.
        """
        digest = hashlib.sha256(data).hexdigest()
        with self._lock:
            if digest not in self._known:
                self._known[digest] = self._find(digest) or self._write(digest, data, where)
            return self._known[digest]

    def _find(self, digest: str) -> ImageReference | None:
        """The image that an earlier session of the run has stored; None also for a file that a crash has damaged."""
        from PIL import Image

        for suffix in _SUFFIXES:
            path = self._folder / f"{digest}.{suffix}"
            if path.is_file():
                try:
                    with Image.open(path) as image:
                        return ImageReference(digest, path, image.width, image.height)
                except OSError:
                    return None
        return None

    def _write(self, digest: str, data: bytes, where: str) -> ImageReference:
        image = check_image(data, where)
        path = self._folder / f"{digest}.{image.suffix}"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            # Not flushed to disk: a large dataset has many images, and a damaged one is written again.
            temporary = temporary_path(path)
            temporary.write_bytes(image.data)
            temporary.replace(path)
        except OSError as error:
            raise DataError(f"{where} cannot be stored as {path} ({error.strerror}).") from error
        return ImageReference(digest, path, image.width, image.height)


class UnstoredImages(ImageStore):
    """Checks images like an `ImageStore`, and writes none: for a check before a run."""

    has_images = False
    """Whether an image has been checked."""

    def _find(self, digest: str) -> ImageReference | None:
        return None

    def _write(self, digest: str, data: bytes, where: str) -> ImageReference:
        image = check_image(data, where)
        self.has_images = True
        return ImageReference(digest, Path(f"{digest}.{image.suffix}"), image.width, image.height)
