"""Result of a task pipeline: a folder with the rows, the removed rows, and a manifest.

data/           the rows, as a folder of the library `datasets`
origins.npy     the identity of each row's source row
removed.jsonl   each removed row: its location, the operator, the reason
manifest.json   input, operators, rows in and out, reasons, histograms
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strop.errors import DataError
from strop.workers.json_text import parse_json


@dataclass(frozen=True, slots=True)
class PipelineResult:
    """A complete result."""

    folder: Path
    manifest: Mapping[str, Any]

    @property
    def data(self) -> Path:
        """Folder of the rows."""
        return self.folder / "data"

    @property
    def rows(self) -> int:
        """Number of rows."""
        return int(self.manifest["rows_out"])

    def removed(self) -> Iterator[dict[str, Any]]:
        """The removed rows, by operator."""
        file = self.folder / "removed.jsonl"
        if file.is_file():
            with file.open(encoding="utf-8") as lines:
                yield from map(json.loads, lines)

    def __str__(self) -> str:
        """`data.pipeline: 7473 rows -> 5210 (length 12, deduplicate 3, pass_rate 2248 removed)`"""
        changes = [
            f"{each['type']} {each['rows_in'] - each['rows_out']:+d}".replace("+-", "-").replace("+", "-")
            if each["rows_in"] >= each["rows_out"]
            else f"{each['type']} +{each['rows_out'] - each['rows_in']}"
            for each in self.manifest["operators"]
            if each["rows_in"] != each["rows_out"]
        ]
        text = f" ({', '.join(changes)})" if changes else ""
        return f"data.pipeline: {self.manifest['rows_in']} rows -> {self.rows}{text}; {self.folder}"


def read_result(folder: Path) -> PipelineResult | None:
    """The result in a folder; None if there is none. Raises DataError for a manifest that cannot be read."""
    file = folder / "manifest.json"
    if not file.is_file():
        return None
    try:
        manifest = parse_json(file.read_text(encoding="utf-8"))
        return PipelineResult(folder, {**manifest, "rows_out": int(manifest["rows_out"])})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{file} cannot be read: {error}. Delete the folder, and the pipeline runs again."
        ) from None
