"""Tables of keys in the folder `keys`: the fields that keys of a tool decide, their refusals and their notices.

A table has sections with a subject (`about`), a `reader`, and keys that precede those of each row (`with`). A row
begins with a key with its value, or with a list of them. It continues with the fields that they decide (`mapped`), the
message of the error (`refused`), or all notices (`noted`). `both_ways` has keys whose run the tool's keys express.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml
from pydantic import BaseModel

from strop.compat.azureml.reader import read_component
from strop.compat.hydra import ConfigSelection
from strop.compat.trinity.reader import read_trinity
from strop.compat.trl.reader import find_program, read_trl_arguments
from strop.compat.verl.ppo_trainer import read_verl
from strop.compat.verl.sft_engine import read_verl_sft
from strop.config.load.loader import LoadedRun
from strop.config.units import Amount

FOLDER = Path(__file__).parent / "keys"
Part = Literal["mapped", "refused", "noted", "both_ways"]


@dataclass(frozen=True, slots=True)
class Row:
    """Keys of a tool, and what they give."""

    reader: str
    keys: tuple[str, ...]
    expected: Any

    def read(self) -> LoadedRun:
        """The run that the keys describe. Raises ConfigError."""
        return read_keys(self.reader, self.keys)


def rows(part: Part) -> Any:
    """The rows of all tables as parameters `row` of a test."""
    cases = [pytest.param(row, id=name) for name, row in _rows(part)]
    return pytest.mark.parametrize("row", cases)


def _rows(part: Part) -> Iterator[tuple[str, Row]]:
    for path in sorted(FOLDER.glob("*.yaml")):
        for section in _sections(path):
            for entry in section.get(part, ()):
                keys, *expected = [entry] if part == "both_ways" else entry
                own = [keys] if isinstance(keys, str) else keys
                before = section.get("with", [])
                row = Row(section["reader"], (*before, *own), expected[0] if expected else None)
                yield f"{section['reader']}: {' '.join(own)}"[:120], row


@cache
def _sections(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    return found


def read_keys(reader: str, keys: Sequence[str]) -> LoadedRun:
    """Read keys as a command line of the tool; Trinity's override those of `t.yaml`. Raises ConfigError."""
    tool, _, program = reader.partition(" ")
    match tool:
        case "verl":
            selection = ConfigSelection(name=program) if program else None
            return read_verl(keys, selection=selection, here=True)
        case "verl-sft":
            return read_verl_sft(keys, here=True)
        case "trinity":
            return read_trinity(Path("t.yaml"), keys, here=True)
        case "trl":
            words = " ".join(keys).split()
            base = ("--model_name_or_path", "m", "--dataset_name", "train.jsonl")
            return read_trl_arguments(find_program(program), [*base, *words])
        case _:
            return read_component(reader, keys, here=True).loaded


def value_of(loaded: LoadedRun, field: str) -> Any:
    """The value of a run field by its dotted name."""
    found: Any = loaded.run
    for part in field.split("."):
        found = found[int(part)] if part.isdigit() else getattr(found, part)
    return found


def is_same(found: Any, expected: Any) -> bool:
    """Whether a value equals the plain value of a table; a mapping has the fields of a section that differ from its
    defaults."""
    if isinstance(found, BaseModel):
        return isinstance(expected, Mapping) and found == type(found).model_validate(expected)
    if isinstance(found, tuple | list) and isinstance(expected, list):
        return len(found) == len(expected) and all(map(is_same, found, expected))
    if isinstance(found, Amount | Path):
        return str(found) == expected
    return bool(found == expected) and type(found) in (type(expected), int, float)
