"""No key of a row is ignored without a word: one that is dropped, renamed or nulled has an effect, or is refused or
named."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest

from strop.config.schema.data import DataConfig, TasksetConfig
from strop.data.offline_dataset import load_offline_dataset
from strop.data.offline_rows import LOSS_MARKS
from strop.data.row_keys import RowKeys
from strop.data.taskset import load_taskset
from strop.errors import DataError

TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{{ style }}{% for m in messages %}<|{{ m.role }}|>"
    "{{ m.name }}{{ m.content }}{{ (m.tool_calls or '') | string }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
CALL = {"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
USER = {"role": "user", "content": "one", "name": "Ann", "color": "red"}
TALK = [
    {"role": "system", "content": "two"},
    USER,
    {"role": "assistant", "content": "three", "weight": 0},
    {"role": "user", "content": "four"},
    {"role": "assistant", "content": "", "tool_calls": [CALL], "weight": 1},
    {"role": "tool", "content": "five"},
    {"role": "assistant", "content": "six", "weight": 1},
]
SPOKEN = [{"from": "human", "value": "one"}, {"from": "gpt", "value": "two", "loss": True}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
PAIR = {"chosen": "chosen", "rejected": "rejected"}
READ = {"tools": "tools", "template_args_column": "kwargs", "optional_columns": ("tools", "kwargs")}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "task": ({"prompt": [TALK[0], USER], "answer": "7", "tools": TOOLS, "level": 2}, {}),
    "task of Alpaca": (
        {
            "instruction": "one",
            "input": "two",
            "history": [["three", "four"]],
            "system": "five",
            "answer": "7",
        },
        {"prompt": "instruction"},
    ),
    "demonstration": (
        {
            "prompt": "one",
            "response": "two",
            "tools": TOOLS,
            "kwargs": {"style": "x"},
            "source": "web",
            "weight": 2,
        },
        {"response": "response", **READ},
    ),
    "messages": (
        {"prompt": [USER], "response": [TALK[6]], "system": "two"},
        {"response": "response", "system_column": "system"},
    ),
    "conversation": ({"messages": TALK, "prompt": "one", "tools": TOOLS}, {"response": "messages", **READ}),
    "ShareGPT": ({"conversations": SPOKEN, "system": "three"}, {"response": "conversations"}),
    "Alpaca": (
        {
            "instruction": "one",
            "input": "two",
            "output": "three",
            "history": [["four", "five"]],
            "system": "six",
        },
        {"prompt": "instruction", "response": "output"},
    ),
    "pair": ({"prompt": "one", "chosen": "two", "rejected": "three", "margin": 0.5}, PAIR),
    "conversations": (
        {"chosen": TALK, "rejected": [*TALK[:4], {"role": "assistant", "content": "six"}]},
        PAIR,
    ),
    "ms-swift": (
        {"messages": [USER, TALK[6]], "rejected_response": "seven", "images": ["a.png"]},
        {"chosen": "messages", "rejected": "rejected_response"},
    ),
    "OpenAI's pair": (
        {
            "input": {"messages": [USER], "tools": TOOLS, "parallel": True},
            "preferred": [TALK[6]],
            "other": "seven",
        },
        {"prompt": "input.messages", "chosen": "preferred", "rejected": "other", "tools": "input.tools"},
    ),
    "text": ({"text": "one two", "language": "en"}, {"text": "text"}),
}
UNHEARD = {"id": 7, "idx": None}
"""Columns without a notice."""


@pytest.fixture
def outcome(tokenizer, write_lines):
    """A function that gives what becomes of a row: what is trained on or sampled from, with notices; or its refusal."""

    def load(row, columns, template=TEMPLATE):
        section = TasksetConfig(path=str(write_lines("rows.jsonl", [row])), **columns)
        data = DataConfig(train=section, chat_template=template, max_prompt_tokens=500)
        try:
            if section.is_offline:
                found = load_offline_dataset(section, data, tokenizer, name="train", seed=1, shuffle=False)
                trained = [
                    (e.token_ids.tolist(), e.loss_mask.tolist())
                    for g in found.all_groups()
                    for e in g.experiences
                ]
                return trained, [*found.notes()]
            tasks = load_taskset(section, data, tokenizer, seed=1, shuffle=False)
            shown = [
                (t.prompt_ids.tolist(), t.answer, t.source, json.dumps(t.extra)) for t in tasks.all_tasks()
            ]
            return shown, [*tasks.notes()]
        except DataError as error:
            return str(error)

    return load


def keys_of(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of the keys of a row, of its messages, and of what is inside of them."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        if isinstance(value, dict):
            yield (*path, key)
        yield from keys_of(item, (*path, key))


def says_nothing(row: dict[str, Any], path: tuple[Any, ...]) -> bool:
    """Whether a key says what its absence says: an empty content, and a mark on a turn that is trained on anyway."""
    value: Any = row
    for step in path:
        value = value[step]
    return value == "" or (path[-1] in LOSS_MARKS and value == 1)


def changed(row: dict[str, Any], path: tuple[Any, ...], how: str) -> dict[str, Any]:
    new = copy.deepcopy(row)
    at = new
    for step in path[:-1]:
        at = at[step]
    value = at.pop(path[-1])
    if how != "dropped":
        at[path[-1] if how == "null" else f"{path[-1]}_2"] = None if how == "null" else value
    return new


@pytest.mark.parametrize("case", CASES)
def test_no_key_is_ignored_without_a_word(outcome, case):
    row, columns = CASES[case]
    row = {**row, **UNHEARD}
    before = outcome(row, columns)
    assert not isinstance(before, str), "the row itself is not refused"
    paths = [path for path in keys_of(row) if path[0] not in UNHEARD]
    silent = [
        (how, ".".join(map(str, path)))
        for path in paths
        for how in (("renamed",) if says_nothing(row, path) else ("dropped", "renamed", "null"))
        if outcome(changed(row, path, how), columns) == before
    ]
    assert silent == []


@pytest.mark.parametrize("case", CASES)
def test_a_key_that_nothing_knows_is_named(outcome, case):
    row, columns = CASES[case]
    before = outcome(row, columns)
    inside = [path for path in keys_of(row) if path[-1] in ("role", "from")]
    for path in [("new",), *((*path[:-1], "new") for path in inside)]:
        after = copy.deepcopy(row)
        at = after
        for step in path[:-1]:
            at = at[step]
        at["new"] = 1
        found = outcome(after, columns)
        assert found != before
        if path != ("new",) or not case.startswith("task"):
            assert found[0] == before[0] and any("new (1 " in note for note in found[1]), path


LISTS = TasksetConfig(path="x", response="messages")


def test_the_notices_name_what_is_not_read_with_its_count() -> None:
    keys = RowKeys(LISTS, ["level"])
    for number in range(3):
        row = {"messages": [], "tools": [], "level": number, "id": number, "url": "u" if number else None}
        keys.add_trained(row, "row 0", reads_prompt=False)
        keys.add_messages([{**USER, "nick": "Bo"}] * 2)
        keys.add_variables(({},), ["style"])
    assert keys.notes("{{ tools }}{{ m.name }}") == (
        "columns that are not read: tools (3 rows), url (2 rows). Write `tools: tools` in the taskset to give the "
        "model its tools.",
        "keys of messages that are read by neither Strop nor the chat template: color (6 messages), nick (6 messages).",
        "variables that the chat template does not read: style (3 rows).",
    )
    assert keys.notes("{{ tools }}{{ style }}{% for m in messages %}{{ m | tojson }}{% endfor %}")[1:] == ()
    assert "not read without a chat template: name (6 messages), color" in keys.notes(None)[1]


def test_columns_of_prompts_are_named_if_they_change_prompts_elsewhere() -> None:
    keys = RowKeys(TasksetConfig(path="x"))
    row = {"prompt": "a", "tools": "[]", "history": [], "level": 2, "images": [b"a"], "extra_info": {}}
    assert keys.sampled_columns(row) == ["tools", "history"]
    keys.add_sampled(row)
    (note,) = keys.notes(None)
    assert note.startswith(
        "columns that only rewards and workflows get: tools (1 row), images (in the first row). Write"
    )


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"loss_mask": [0, 1, 1]}, "has the column 'loss_mask' with 3 numbers"),
        (
            {"input_ids": [5], "labels": [-100]},
            "has the column 'input_ids' with 1 number, which other tools train by",
        ),
        ({"labels": [True, False]}, "'labels'"),
        ({"train_on_input": True}, "has train_on_input: True, and Strop trains on responses only"),
        ({"train_on_input": False, "labels": "positive", "loss_mask": [], "completion_mask": None}, None),
    ],
)
def test_masks_on_tokens_are_refused(row: dict[str, Any], says: str | None) -> None:
    keys = RowKeys(LISTS)
    if says is None:
        keys.add_trained(row, "row 0")
        return
    with pytest.raises(DataError, match=says):
        keys.add_trained(row, "row 0")
