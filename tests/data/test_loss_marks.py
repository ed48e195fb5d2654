"""Marks on messages that say what is trained on: taken, or refused with the message."""

from __future__ import annotations

import pytest

from strop.data.offline_rows import LOSS_MARKS, take_marks
from strop.errors import DataError
from strop.types import Message

USER = {"role": "user", "content": "u"}


def turn(**marks: object) -> Message:
    return {"role": "assistant", "content": "a", **marks}


def untrained(messages: list[Message], first: int = 0, *, only_last: bool = False) -> set[int]:
    plain, found = take_marks(messages, first, "row 0", only_last=only_last)
    assert [{**message} for message in plain] == [
        {"role": m["role"], "content": m["content"]} for m in messages
    ]
    return {*found}


@pytest.mark.parametrize("key", LOSS_MARKS)
@pytest.mark.parametrize(("yes", "no"), [(True, False), (1, 0), (1.0, 0.0)])
def test_each_mark_selects_turns(key: str, yes: object, no: object) -> None:
    assert untrained([USER, turn(), USER, turn()]) == set()
    assert untrained([USER, turn(**{key: no}), USER, turn(**{key: yes})]) == {1}
    assert untrained([USER, turn(), USER, turn(**{key: no})]) == {3}, "a turn without a mark is trained on"
    assert untrained([{**USER, key: no}, turn(**{key: yes})]) == set()
    assert untrained([USER, turn(**{key: no}), USER, turn(**{key: yes})], first=3) == set(), "of the prompt"


@pytest.mark.parametrize(
    ("messages", "first", "only_last", "says"),
    [
        (
            [{**USER, "loss": True}, turn()],
            0,
            False,
            "message 1, of the role 'user' has loss: True, but only turns",
        ),
        ([USER, turn(weight=0.5)], 0, False, "message 2 has weight: 0.5, and a message is trained on or not"),
        ([USER, turn(train="yes")], 0, False, "message 2 has train: 'yes'"),
        ([USER, turn(loss=[1, 0])], 0, False, "Write true or false"),
        ([USER, turn(weight=1, loss=False)], 0, False, r"contradict each other \(weight: 1, loss: False\)"),
        (
            [USER, turn(loss=True), USER, turn()],
            0,
            False,
            "message 2 has loss: True, and message 4, also of the",
        ),
        (
            [USER, turn(weight=1), USER, turn(weight=1)],
            3,
            False,
            "belongs to the prompt, .* Write weight: 0, or",
        ),
        (
            [USER, turn(weight=1), USER, turn(weight=1)],
            3,
            True,
            "trained_turns: last trains on the last turn alone",
        ),
        (
            [USER, turn(train_detail=[{"begin_offset": 0}])],
            0,
            False,
            "train_detail, which marks parts of a message",
        ),
    ],
)
def test_a_mark_that_cannot_be_honored_is_refused(
    messages: list[Message], first: int, only_last: bool, says: str
) -> None:
    with pytest.raises(DataError, match=says):
        take_marks(messages, first, "row 0", only_last=only_last)
