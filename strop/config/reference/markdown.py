"""Tables and anchors of Markdown pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

GENERATED_NOTICE = "<!-- Generated from the code by `make docs`; do not edit. -->"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table."""
    lines = [_row(header), _row(["---"] * len(header))]
    return [*lines, *(_row([cell.replace("|", "\\|").replace("\n", " ") for cell in row]) for row in rows)]


def inline_code(text: str) -> str:
    """Format text as code; an empty text stays empty."""
    return f"`{text}`" if text else ""


def anchor_tag(name: str) -> str:
    """Return the anchor of a link to `#name`."""
    return f'<a id="{name}"></a>'


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
