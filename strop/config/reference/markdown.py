"""Tables and anchors in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

MADE = "<!-- Made by `make docs` from the code: change it there. -->"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table."""
    lines = [_row(header), _row(["---"] * len(header))]
    return [*lines, *(_row([cell.replace("|", "\\|").replace("\n", " ") for cell in row]) for row in rows)]


def code(text: str) -> str:
    """As code; nothing for nothing."""
    return f"`{text}`" if text else ""


def anchored(name: str) -> str:
    """A place that `#name` leads to."""
    return f'<a id="{name}"></a>'


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
