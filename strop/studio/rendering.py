"""HTML of Studio's pages and fragments, from the templates of this package and the style sheet of the report."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from starlette.responses import HTMLResponse, Response

from strop.config.paths import existing_path
from strop.printable import encodable, printable
from strop.report.charts import STATIC, static_text
from strop.report.page import prose
from strop.runs.formatting import format_duration, format_number
from strop.studio.access import base_path
from strop.studio.fields import FormField

_STATIC = Path(__file__).parent / "static"
_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=ChoiceLoader(
            [PackageLoader("strop.studio", "templates"), PackageLoader("strop.report", "templates")]
        ),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": format_number,
        "duration": format_duration,
        "age": _age,
        "visible": printable,
        "prose": prose,
        "possible_text": _possible_text,
    }
    environment.globals |= {"url": url}
    return environment


def render(template: str, /, **values: Any) -> str:
    """Render the template `<template>.html.j2`."""
    return _environment().get_template(f"{template}.html.j2").render(**values)


def html(template: str, /, **values: Any) -> HTMLResponse:
    """Response with the template `<template>.html.j2`."""
    return HTMLResponse(encodable(render(template, **values)))


def url(path: str, **query: object) -> str:
    """URL of a page, with the parameters of its query that are not None, for the answer to this request."""
    path = base_path.get() + path
    text = urlencode({name: str(value) for name, value in query.items() if value is not None})
    return f"{path}?{text}" if text else path


def static_file(name: str) -> Response:
    """Response with a file of the folder `static`; the style sheet begins with the report's."""
    if name == "studio.css":
        source = str(static_text("uPlot.min.css")) + _environment().get_template("style.css").render()
        source += (_STATIC / name).read_text("utf-8")
        return Response(source, media_type="text/css")
    paths = (existing_path(folder / Path(name).name) for folder in (_STATIC, STATIC))
    path = next((path for path in paths if path is not None and path.is_file()), None)
    if path is None:
        return Response("There is no such file.", 404)
    return Response(path.read_bytes(), media_type=_TYPES[path.suffix])


def _possible_text(fields: Sequence[FormField]) -> str:
    """Key, note and description of each field, one per line, for the search of a form."""
    return "\n".join(f"{one.key}\t{one.note}\t{one.help}" for one in fields)


def _age(moment: datetime) -> str:
    """The time since a moment: `5 s ago`."""
    return f"{format_duration(max((datetime.now(UTC) - moment).total_seconds(), 0))} ago"
