"""First demonstrations or preference pairs of an SFT or DPO run, as the model reads them, for the report."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from strop.config.load.schema_faults import first_fault
from strop.errors import RunFolderError
from strop.workers.files import read_regular


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


_EXAMPLE = TypeAdapter(TrainingExample)


def write_training_examples(file: Path, examples: Sequence[TrainingExample]) -> None:
    """Write examples as JSON lines."""
    file.write_text("".join(json.dumps(asdict(each)) + "\n" for each in examples), encoding="utf-8")


def read_training_examples(file: Path) -> list[TrainingExample]:
    """Read the examples of a run; none of a run that samples its responses. Raises `RunFolderError` for damage."""
    if not file.exists():
        return []
    try:
        return [_EXAMPLE.validate_json(line) for line in read_regular(file).split(b"\n") if line]
    except (OSError, ValidationError) as error:
        reason = first_fault(error) if isinstance(error, ValidationError) else error
        raise RunFolderError(
            f"{file} cannot be read ({reason}). Delete it; the report is then written without the first rows."
        ) from error
