"""Labels of responses: desirable or undesirable, and the two rows that a pair becomes where responses are unpaired."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from strop.config.schema.data import TasksetConfig
from strop.data.encoding.conversation_encoder import EncodedSequence
from strop.data.sources.columns import value_at
from strop.data.sources.rows import DatasetRows
from strop.errors import DataError
from strop.types import ExperienceGroup, SegmentRole

_PAIRS_PER_BLOCK = 1000
"""Number of pairs whose chosen responses stand before all their rejected ones, so that two answers to one prompt are
rarely neighbors. TRL (trl/data_utils.py, unpair_preference_dataset) does so too: `datasets` maps 1000 rows at once."""


def read_labels(rows: DatasetRows, section: TasksetConfig) -> list[bool] | None:
    """The label of every row; None for a taskset without labels. Raises `DataError` for a row without one."""
    column = section.label
    if column is None or section.steps is not None:
        return None
    return [
        _label(value_at(row, column, rows.where(number)), column, rows.where(number))
        for number, row in enumerate(rows.scan([column]))
    ]


def _label(value: Any, column: str, where: str) -> bool:
    if isinstance(value, bool | int | float) and value in (0, 1):
        return bool(value)
    raise DataError(
        f"{where}: the label in the column {column!r} is {value!r:.60}; write true for a desirable and false for an "
        "undesirable response, or 1 and 0. Remove rows without a label."
    )


def step_labels(row: Mapping[str, Any], section: TasksetConfig, where: str) -> tuple[float, ...]:
    """1 for each correct step of a row, 0 for each other. Raises `DataError` for steps without a label each."""
    assert section.label is not None and section.steps is not None
    labels, steps = value_at(row, section.label, where), value_at(row, section.steps, where)
    if not isinstance(labels, list) or any(label not in (0, 1) for label in labels):
        raise DataError(
            f"{where}: the labels of steps in the column {section.label!r} are {labels!r:.60}; write a list with true "
            "for each correct step and false for each other, or 1 and 0."
        )
    if len(labels) != len(steps):
        raise DataError(
            f"{where}: {len(steps)} steps in the column {section.steps!r} have {len(labels)} labels in "
            f"{section.label!r}; write one for each step, or remove the row."
        )
    return tuple(map(float, labels))


def contradictions(
    encoded: Sequence[Sequence[EncodedSequence]], labels: Sequence[bool | None]
) -> dict[int, int]:
    """Positions of rows whose sequence also has the other label, each with the first such position."""
    by_content: dict[tuple[object, ...], list[int]] = {}
    for position, (one, *_) in enumerate(encoded):
        if labels[position] is not None:
            key = (one.token_ids.tobytes(), one.loss_mask.tobytes(), one.media)
            by_content.setdefault(key, []).append(position)
    found: dict[int, int] = {}
    for positions in by_content.values():
        first = {
            label: position for position in reversed(positions) if (label := labels[position]) is not None
        }
        if len(first) == 2:
            found |= {position: first[not labels[position]] for position in positions}
    return dict(sorted(found.items()))


def unpair(groups: Sequence[ExperienceGroup]) -> list[tuple[int, ExperienceGroup]]:
    """A desirable and an undesirable row for each pair, with the number of its group."""
    found = []
    for first in range(0, len(groups), _PAIRS_PER_BLOCK):
        block = range(first, min(first + _PAIRS_PER_BLOCK, len(groups)))
        sides: tuple[SegmentRole, ...] = ("desirable", "undesirable")
        for side, role in enumerate(sides):
            for number in block:
                experience = replace(groups[number].experiences[side], role=role, pair=None)
                found.append((number, ExperienceGroup(experience.id, (experience,))))
    return found
