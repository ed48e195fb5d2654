"""Labels in rows: desirable or undesirable responses, steps, scores, margins, and turns that are trained on.

A turn's mark is OpenAI's `weight` (0 or 1), ms-swift's `loss`, axolotl's `train` and `training`, or slime's
`step_loss_mask`. For all of them an assistant turn without a mark is trained on; a row that marks some of its turns as
trained and says nothing about others does not say which is meant, and is refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from strop.config.schema.data import TasksetConfig
from strop.data.encoding.conversation_encoder import EncodedSequence
from strop.data.sources.columns import value_at
from strop.data.sources.rows import DatasetRows
from strop.errors import DataError
from strop.types import ExperienceGroup, Message, SegmentRole

_PAIRS_PER_BLOCK = 1000
"""Number of pairs whose chosen responses stand before all their rejected ones, so that two answers to one prompt are
rarely neighbors. TRL (trl/data_utils.py, unpair_preference_dataset) does so too: `datasets` maps 1000 rows at once."""
LOSS_MARKS = (
    *("weight", "loss", "train", "training", "trainable", "train_on_turn", "loss_mask", "step_loss_mask"),
)
_PARTIAL_MARKS = ("train_detail", "training_detail")
"""Axolotl's marks on parts of a message."""


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


def row_target(row: Mapping[str, Any], section: TasksetConfig, where: str) -> float:
    """The score of a row's response, or the margin of its pair, which is 0 without a column.

    Raises `DataError` for a value that is no finite number.
    """
    column = section.score if section.chosen is None else section.margin
    if column is None:
        return 0.0
    value = value_at(row, column, where)
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    what = "score" if section.chosen is None else "margin"
    raise DataError(
        f"{where}: the {what} in the column {column!r} is {value!r:.60}; write a finite number. Remove rows without a "
        f"{what}."
    )


def take_marks(
    messages: Sequence[Message], first: int, where: str, *, only_last: bool
) -> tuple[tuple[Message, ...], frozenset[int]]:
    """The messages without marks, and the indices of assistant turns from `first` on that are not trained on.

    `only_last` says that the run file trains only the last turn. Raises `DataError` for a mark that cannot be honored.
    """
    if not any(len(message) > 2 for message in messages):
        return tuple(messages), frozenset()
    marks = {i: mark for i, m in enumerate(messages) if (mark := _mark(m, f"{where}, message {i + 1}"))}
    if not marks:
        return tuple(messages), frozenset()
    turns = [i for i, message in enumerate(messages) if i >= first and message["role"] == "assistant"]
    for i, (key, trained) in marks.items():
        if trained and i not in turns:
            raise DataError(f"{where}, message {i + 1}{_why_not(messages[i], key, only_last=only_last)}")
    unmarked = [i for i in turns if i not in marks]
    chosen = next((i for i in turns if i in marks and marks[i][1]), None)
    if unmarked and chosen is not None:
        key = marks[chosen][0]
        raise DataError(
            f"{where}: message {chosen + 1} has {key}: {messages[chosen][key]!r}, and message {unmarked[0] + 1}, also "
            f"of the assistant, has no mark. Write {key} in both, or mark only those that are not trained on."
        )
    plain = tuple({key: value for key, value in m.items() if key not in LOSS_MARKS} for m in messages)
    return plain, frozenset(i for i in turns if i in marks and not marks[i][1])


def _mark(message: Message, where: str) -> tuple[str, bool] | None:
    """The first mark of a message, and whether it asks for training; None without one."""
    for key in _PARTIAL_MARKS:
        if key in message:
            raise DataError(
                f"{where} has {key}, which marks parts of a message; Strop trains on whole messages or not at all. "
                "Remove it, or write train: true or false."
            )
    found: dict[str, bool] = {}
    for key in LOSS_MARKS:
        if key in message:
            found[key] = _as_bool(message[key], key, where)
    if len({*found.values()}) > 1:
        shown = ", ".join(f"{key}: {message[key]!r}" for key in found)
        raise DataError(f"{where} has marks that contradict each other ({shown}). Write one of them.")
    return next(iter(found.items()), None)


def _as_bool(value: Any, key: str, where: str) -> bool:
    if value in (0, 1):
        return bool(value)
    raise DataError(
        f"{where} has {key}: {value!r:.60}, and a message is trained on or not. Write true or false (1 or 0), or "
        f"remove {key}."
    )


def _why_not(message: Message, key: str, *, only_last: bool) -> str:
    shown = f"of the role {message['role']!r} has {key}: {message[key]!r}"
    if message["role"] != "assistant":
        return f", {shown}, but only turns of the assistant are trained on. Write {key}: {_same(message[key], False)}."
    if only_last:
        return (
            f", {shown}, but trained_turns: last trains on the last turn alone. Remove trained_turns, or write "
            f"{key}: {_same(message[key], False)}."
        )
    return (
        f", {shown}, but it belongs to the prompt, which is not trained on. Write {key}: "
        f"{_same(message[key], False)}, or the whole conversation in the response column."
    )


def _same(value: Any, meant: bool) -> str:
    """A mark in the type of another one, as JSON."""
    return str(meant).lower() if isinstance(value, bool) else str(int(meant))
