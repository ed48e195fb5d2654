"""Folder of a run's images: each distinct image is checked and stored once, under its digest."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path

from strop.data.images.files import check_image
from strop.errors import DataError
from strop.types import ImageReference
from strop.workers.files import temporary_path

_SUFFIXES = ("png", "jpg", "webp")


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
