"""Rows in the forms of ShareGPT, LLaMA-Factory and ms-swift: the messages that they mean."""

from __future__ import annotations

from typing import Any

import pytest

from strop.config.schema.data import TasksetConfig
from strop.data.encoding.messages import to_messages
from strop.data.prompt_check import to_prompt
from strop.data.prompt_columns import prompt_value
from strop.errors import DataError

UNHASHABLE = [["human"], {"a": 1}]
CALL = '{"name": "weather", "arguments": {"city": "Rome"}}'
CALLS = [{"type": "function", "function": {"name": "weather", "arguments": {"city": "Rome"}}}]
CALLING = {"role": "assistant", "content": "", "tool_calls": CALLS}


def says(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"from": "human", "value": "a"}, says("user", "a")),
        ({"from": "user", "value": "a"}, says("user", "a")),
        ({"from": "gpt", "value": "a"}, says("assistant", "a")),
        ({"from": "assistant", "value": "a", "loss": False}, {**says("assistant", "a"), "loss": False}),
        ({"from": "system", "value": "a"}, says("system", "a")),
        ({"from": "observation", "value": "a"}, says("tool", "a")),
        ({"from": "tool", "value": "a"}, says("tool", "a")),
        ({"from": "function_call", "value": CALL}, CALLING),
        ({"from": "function_call", "value": f"[{CALL}, {CALL}]"}, {**CALLING, "tool_calls": CALLS * 2}),
        ({"from": "human", "value": "a", "role": None, "content": None}, says("user", "a")),
        ({"role": "tool_call", "content": CALL}, CALLING),
        ({"role": "tool_response", "content": "a"}, says("tool", "a")),
        ({"role": "observation", "content": "a"}, says("observation", "a")),
        ({"role": "narrator", "content": "a"}, says("narrator", "a")),
    ],
)
def test_a_message_of_another_tool(message: dict[str, Any], expected: dict[str, Any]) -> None:
    assert to_messages([message], "row 0") == (expected,)


def test_consecutive_calls_are_one_message() -> None:
    calls = [{"role": "tool_call", "content": CALL}] * 2
    assert to_messages([*calls, says("tool", "a")], "row 0") == (
        {**CALLING, "tool_calls": CALLS * 2},
        says("tool", "a"),
    )


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"from": "narrator", "value": "a"}, "row 0, message 1 is from 'narrator'"),
        ({"from": "human"}, "A message must have a role and a content"),
        ({"from": "function_call", "value": "weather(Rome)"}, "calls a tool, and its content is 'weather"),
        ({"role": "tool_call", "content": '{"arguments": {}}'}, "Write JSON such as"),
    ],
)
def test_a_message_that_is_not_understood_is_refused(message: dict[str, Any], text: str) -> None:
    with pytest.raises(DataError, match=text):
        to_messages([message], "row 0")


EARLIER = [says("user", "a"), says("assistant", "b")]


@pytest.mark.parametrize(
    ("prompt", "row", "expected"),
    [
        ("instruction", {"instruction": "Add", "input": "1 2"}, "Add\n1 2"),
        ("instruction", {"instruction": "Add", "input": ""}, "Add"),
        ("instruction", {"instruction": "Add", "input": None, "history": []}, "Add"),
        ("instruction", {"instruction": "", "input": "1 2"}, "1 2"),
        ("query", {"query": "c", "input": "1 2"}, "c"),
        ("query", {"query": "c", "history": [["a", "b"]]}, [*EARLIER, says("user", "c")]),
        ("query", {"query": "c", "history": '[["a", "b"]]'}, [*EARLIER, says("user", "c")]),
        (
            "instruction",
            {"instruction": "c", "input": "d", "history": [["a", "b"]]},
            [*EARLIER, says("user", "c\nd")],
        ),
        ("prompt", {"prompt": "Add", "input": "1 2", "history": [["a", "b"]]}, "Add"),
    ],
)
def test_a_prompt_in_the_form_of_alpaca(prompt: str, row: dict[str, Any], expected: Any) -> None:
    assert prompt_value(row, "row 0", TasksetConfig(path="x", prompt=prompt)) == expected


def test_the_system_message_of_alpaca() -> None:
    section = TasksetConfig(path="x", prompt="query", system="Be brief.")
    for own, expected in (("Be kind.", "Be kind."), (None, "Be brief."), ("", "Be brief.")):
        messages = to_prompt({"query": "c", "system": own}, "row 0", section).messages
        assert messages == (says("system", expected), says("user", "c"))


@pytest.mark.parametrize(
    "row",
    [
        {"instruction": "c", "history": [["a"]]},
        {"instruction": "c", "history": "a, b"},
        {"instruction": "c", "history": [["a", 1]]},
        {"instruction": "c", "input": 7},
    ],
)
def test_another_value_in_a_column_of_alpaca_is_refused(row: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=r"'history' is .* not a list of pairs|must be text"):
        prompt_value(row, "row 0", TasksetConfig(path="x", prompt="instruction"))


@pytest.mark.parametrize("speaker", UNHASHABLE)
def test_a_speaker_that_is_no_text_is_refused(speaker: Any) -> None:
    for message in ({"from": speaker, "value": "a"}, {"role": speaker, "content": "a"}):
        with pytest.raises(DataError, match="row 1"):
            to_messages([message], "row 1")
