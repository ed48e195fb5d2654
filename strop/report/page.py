"""Self-contained HTML pages from the templates of this package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from strop.errors import RunFolderError
from strop.printable import encodable
from strop.report.plotting import static_text
from strop.runs.formatting import format_number, format_time
from strop.workers.files import atomic_write


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
