"""Scores that a reward model gives to the rows of eval tasksets, as its last evaluation recorded them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from strop.config.load.schema_faults import first_fault
from strop.errors import RunFolderError
from strop.workers.files import atomic_write, read_regular


@dataclass(frozen=True, slots=True)
class HeldOutScores:
    """Scores of one eval taskset."""

    taskset: str
    step: int
    scores: Mapping[str, Sequence[float]]
    """Scores by the kind of row: `chosen` and `rejected`, `correct` and `wrong` steps, or `scored` responses."""
    probabilities: Sequence[float]
    """Probability that the model gives to what is true, the preference of a pair or the label of a step; none for
    responses with a score."""


_SCORES = TypeAdapter(list[HeldOutScores])


def write_held_out_scores(file: Path, scores: Sequence[HeldOutScores]) -> None:
    """Write the scores of an evaluation in place of those of the one before."""
    atomic_write(file, json.dumps([asdict(each) for each in scores]))


def read_held_out_scores(file: Path) -> list[HeldOutScores]:
    """Read the scores of a run; none of a run that trains no reward model. Raises `RunFolderError` for damage."""
    if not file.exists():
        return []
    try:
        return _SCORES.validate_json(read_regular(file))
    except (OSError, ValidationError) as error:
        reason = first_fault(error) if isinstance(error, ValidationError) else error
        raise RunFolderError(
            f"{file} cannot be read ({reason}). Delete it; the report is then written without the scores."
        ) from error
