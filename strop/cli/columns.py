"""Plain-text tables for pipes and log files."""

from __future__ import annotations

from collections.abc import Sequence


def align_columns(rows: Sequence[tuple[str, ...]], max_width: int = 40) -> str:
    """Align the cells of a table; a cell wider than `max_width` shifts only its own line."""
    columns = range(len(rows[0]) - 1)
    widths = [max(min(len(row[column]), max_width) for row in rows) for column in columns]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]).rstrip()
        for row in rows
    )
