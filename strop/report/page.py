"""Self-contained HTML pages from the templates of this package, with thumbnails of images as data URLs."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from io import BytesIO
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from strop.errors import RunFolderError
from strop.printable import encodable
from strop.report.charts import static_text
from strop.runs.formatting import format_number, format_time
from strop.workers.files import atomic_write, open_regular


def render_page(name: str, **values: Any) -> str:
    """Render the template `<name>.html.j2`."""
    environment = Environment(
        loader=PackageLoader("strop.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"static_text": static_text}
    environment.filters |= {"number": format_number, "day": format_time, "prose": prose}
    return environment.get_template(f"{name}.html.j2").render(**values)


def prose(text: str) -> Markup:
    """A sentence whose `names` are shown as code."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return escape(text)
    shown = [
        escape(part) if number % 2 == 0 else Markup("<code>{}</code>").format(part)
        for number, part in enumerate(parts)
    ]
    return Markup("").join(shown)


def write_page(path: Path, page: str) -> None:
    """Write a page; readers see the old page or the new one. Raises `RunFolderError`."""
    try:
        atomic_write(path, encodable(page))
    except OSError as error:
        raise RunFolderError(
            f"The report {path} cannot be written: {error.strerror or error}. The other files of the run are "
            f"complete. Free space on that disk; `strop report {path.parent}` then writes the report of a training."
        ) from error


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
