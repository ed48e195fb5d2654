"""Thumbnails of images, embedded in a page as data URLs."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from io import BytesIO
from pathlib import Path

from strop.workers.files import open_regular

_LONGEST_EDGE = 240
"""Pixels."""


def make_thumbnails(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """A data URL for each named image of the folder; images that are gone or damaged have none."""
    found = {name: _thumbnail(folder / name) for name in dict.fromkeys(names)}
    return {name: url for name, url in found.items() if url is not None}


def _thumbnail(path: Path) -> str | None:
    from PIL import Image

    try:
        with open_regular(path) as file, Image.open(file) as image:
            image.thumbnail((_LONGEST_EDGE, _LONGEST_EDGE))
            data = BytesIO()
            image.convert("RGB").save(data, "WEBP", quality=80)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):  # as Pillow calls damage
        return None
    return f"data:image/webp;base64,{base64.b64encode(data.getvalue()).decode()}"
