"""Registry of the generated files: reference pages and JSON Schema."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from strop.compat.reference import defaults, ledgers
from strop.compat.registry import LEDGERS
from strop.config.reference import run_file
from strop.config.reference.json_schema import json_schema

FOLDER = Path("docs/reference")
SCHEMA = Path("strop.schema.json")


def pages() -> dict[Path, str]:
    """Text of each generated file, by its path relative to the repository root."""
    return {
        SCHEMA: schema_text(),
        FOLDER / "run-file.md": run_file.page(),
        **{FOLDER / f"{name}.md": ledgers.page(ledger) for name, ledger in LEDGERS.items()},
        FOLDER / "defaults.md": defaults.page(),
    }


def stale(root: Path) -> list[Path]:
    """Generated files under `root` that are missing or outdated."""
    return [
        path
        for path, text in pages().items()
        if not (root / path).is_file() or (root / path).read_text(encoding="utf-8") != text
    ]


def schema_text() -> str:
    """The JSON Schema with one property per line."""
    return "\n".join(_lines(json_schema())) + "\n"


def _lines(value: dict[str, Any], above: str = "", indent: str = "") -> Iterator[str]:
    yield "{"
    last = len(value) - 1
    for number, (key, item) in enumerate(value.items()):
        comma = "," if number < last else ""
        name = f"{indent} {json.dumps(key)}: "
        if isinstance(item, dict) and item and above != "properties":
            first, *more = _lines(item, key, indent + " ")
            yield name + first
            yield from more[:-1]
            yield more[-1] + comma
        else:
            yield name + json.dumps(item, ensure_ascii=False) + comma
    yield indent + "}"
