"""Marks on messages that say whether they are trained on.

OpenAI's `weight` (0 or 1), ms-swift's `loss`, axolotl's `train` and `training`, slime's `step_loss_mask`. For all of
them an assistant turn without a mark is trained on; a row that marks some of its turns as trained and says nothing
about others does not say which is meant, and is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strop.errors import DataError
from strop.types import Message

LOSS_MARKS = (
    *("weight", "loss", "train", "training", "trainable", "train_on_turn", "loss_mask", "step_loss_mask"),
)
_PARTIAL_MARKS = ("train_detail", "training_detail")
"""Axolotl's marks on parts of a message."""


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
