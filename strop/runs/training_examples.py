"""First demonstrations or preference pairs of an SFT or DPO run, as the model reads them, for the report."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class TrainingText:
    """One training sequence."""

    label: str
    """`demonstration`, `chosen` or `rejected`."""
    text: str
    """Text from the first trained token on."""
    tokens: int
    """Number of trained tokens."""


@dataclass(frozen=True, slots=True)
class TrainingExample:
    """One row of the data."""

    prompt: str
    """Text before the first trained token, with the chat template."""
    answers: tuple[TrainingText, ...]


def write_training_examples(file: Path, examples: Sequence[TrainingExample]) -> None:
    """Write examples as JSON lines."""
    file.write_text("".join(json.dumps(asdict(each)) + "\n" for each in examples), encoding="utf-8")


def read_training_examples(file: Path) -> list[TrainingExample]:
    """Read the examples of a run; none of a run that samples its responses."""
    if not file.is_file():
        return []
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return [
        TrainingExample(row["prompt"], tuple(TrainingText(**answer) for answer in row["answers"]))
        for row in rows
    ]
