"""Inputs and outputs of AzureML's components, read from the tables of the seed pages."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

SEEDS = Path(__file__).parents[2] / ".." / "shared" / "seeds"
PAGES = {
    "rft_trainer": SEEDS / "rft_trainer_component.md",
    "verl_trainer": SEEDS / "verl_trainer_component.md",
    "grpo": SEEDS / "grpo_component.md",
}
_COLUMNS = ("Name", "Description", "Type", "Default", "Optional", "Enum")


def page_copy(component: str) -> dict[str, Any]:
    """The `inputs` and `outputs` by name, from the copy in this folder."""
    return yaml.safe_load((Path(__file__).parent / "pages" / f"{component}.yaml").read_text())


def page_tables(text: str) -> dict[str, Any]:
    """The inputs and outputs from the page itself: type, default as text, optional, enum."""
    inputs, outputs = text.split("## Outputs")
    return {"inputs": dict(_rows(inputs)), "outputs": {name: row["type"] for name, row in _rows(outputs)}}


def _rows(text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    header: list[str] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|") or set(cells[0]) <= {"-"}:
            header = header if line.startswith("|") else []
        elif not header:
            header = cells
            assert set(header) <= set(_COLUMNS), header
        else:
            row = dict(zip(header, cells, strict=True))
            yield row["Name"], _entry(row)


def _entry(row: dict[str, str]) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": row["Type"]}
    if "Default" in row:
        entry["default"] = None if row["Default"] == "-" else row["Default"].strip("'")
        entry["optional"] = row["Optional"] == "True"
        entry["enum"] = [] if row["Enum"] == "NA" else ast.literal_eval(row["Enum"])
    return entry
