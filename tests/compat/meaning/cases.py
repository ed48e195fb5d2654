"""Tables of configurations with the run fields that the tool's own code implies, each with its source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from strop.config.schema import Run
from strop.config.units import Amount

FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Expectation:
    """Value of a run field, and where the tool's code says so."""

    value: Any
    source: str


@dataclass(frozen=True, slots=True)
class Case:
    """One configuration."""

    name: str
    config: Any
    expected: Mapping[str, Expectation]


def read_cases(table: str) -> list[Case]:
    """The cases of a table. Every expectation names one of the table's sources, which name version and file, and a
    line of it; `facts` are measured and have no line. Raises ValueError for an expectation without a line."""
    content = yaml.safe_load((FOLDER / f"{table}.yaml").read_text(encoding="utf-8"))
    return [
        Case(entry["name"], entry["config"], dict(_expectations(entry, content["sources"])))
        for entry in content["cases"]
    ]


def parameters(table: str) -> Any:
    """The cases of a table as parameters of a test."""
    return pytest.mark.parametrize("case", read_cases(table), ids=lambda case: case.name)


def differences(case: Case, run: Run) -> dict[str, str]:
    """The fields whose value differs from the expectation, each with both and the source."""
    return {
        field: f"is {found!r}, expected {expected.value!r}: {expected.source}"
        for field, expected in case.expected.items()
        if not _is_same(found := value_of(run, field), expected.value)
    }


def value_of(run: Run, field: str) -> Any:
    """A field by its dotted name, as plain values; a section without fields of its own is its `type`."""
    found: Any = run
    for part in field.split("."):
        found = found[int(part)] if part.isdigit() else getattr(found, part)
    return _plain(found)


def _plain(value: Any) -> Any:
    if isinstance(value, Amount):
        return str(value)
    if isinstance(value, BaseModel):
        return {name: _plain(getattr(value, name)) for name in type(value).model_fields}
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    return value


def _is_same(found: Any, expected: Any) -> bool:
    if isinstance(expected, float) and isinstance(found, int | float):
        return bool(found == pytest.approx(expected, rel=1e-9))
    return bool(found == expected)


def _expectations(entry: Mapping[str, Any], sources: Mapping[str, str]) -> Iterator[tuple[str, Expectation]]:
    for field, (value, source) in entry["expect"].items():
        file, _, place = str(source).partition(" ")
        if file != "facts" and not place.partition(" ")[0].rstrip(",").isdigit():
            raise ValueError(f"{entry['name']}: {field} names no line of its source: {source!r}")
        yield field, Expectation(value, f"{sources[file]} {place}".strip())
