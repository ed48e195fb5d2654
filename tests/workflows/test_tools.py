"""Tool calling: what is parsed, what is called, and that only the model's own tokens are trained."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strop.config.schema.workflow import Workflow
from strop.data.tool_calls import ToolCall, format_of, read_reply
from strop.errors import ConfigError
from strop.workflows.calculator import calculator
from strop.workflows.experiences import rollout_to_experiences
from strop.workflows.table import load_workflow
from tests.workflows.conftest import TOOLS_TEMPLATE

CHATS = Path(__file__).parents[2] / ".." / "shared" / "data" / "sft_with_tools" / "sft_with_tools.jsonl"


def hermes(name, **arguments):
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


WEATHER = '''
def weather(city: str, unit: str = "celsius") -> dict:
    """The weather of a city.

    Args:
        city: Its name.
        unit: celsius or fahrenheit.
    """
    if city == "Atlantis":
        raise LookupError("no such city")
    return {"city": city, "degrees": 21, "unit": unit}

def silent(x):
    return x
'''


def test_calls_are_made_and_their_results_shown_but_not_trained_on(tool_world, user_file):
    engine = tool_world.says(
        "let me see " + hermes("weather", city="Oslo") + hermes("calculator", expression="2*(3+4)"),
        "21 degrees, and 14",
    )
    tools = ["calculator", f"{user_file(WEATHER)}:weather"]
    rollout = tool_world.run(engine, "tools", {"tools": tools}, max_sequence_tokens=4000)
    assert rollout.error is None
    assert rollout.text == "21 degrees, and 14"
    first, second = (tool_world.tokenizer.decode(request.prompt_ids) for request in engine.requests)
    assert '"name": "calculator"' in first
    assert '"description": "The weather of a city."' in first
    assert second.startswith(first)
    assert '<tool_response>\n{"city": "Oslo", "degrees": 21, "unit": "celsius"}\n</tool_response>' in second
    assert "<tool_response>\n14\n</tool_response>" in second
    (experience,) = rollout_to_experiences(replace(rollout, reward=1.0), "")
    trained = tool_world.tokenizer.decode(experience.token_ids[experience.loss_mask])
    assert "tool_response" not in trained
    assert trained.endswith("</tool_call><|end|>21 degrees, and 14<|end|>")


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (hermes("wether", city="Oslo"), "there is no tool 'wether'; there are weather"),
        (hermes("weather", city="Atlantis"), "LookupError: no such city"),
        (hermes("weather", town="Oslo"), "unexpected keyword argument 'town'"),
        ("<tool_call>{not json}</tool_call>", "this is not JSON"),
        ("<tool_call>[1]</tool_call>", "a call is {"),
        ('<tool_call>{"name": "weather", "arguments": 3}</tool_call>', "its arguments are no object"),
        ('<tool_call>{"name": "weather"', "this is not JSON"),
    ],
)
def test_a_call_that_cannot_be_made_is_told_to_the_model(tool_world, user_file, said, told):
    engine = tool_world.says(said, "sorry")
    rollout = tool_world.run(
        engine, "tools", {"tools": [f"{user_file(WEATHER)}:weather"]}, max_sequence_tokens=4000
    )
    assert (rollout.status, rollout.text) == ("ok", "sorry")
    assert told in rollout.messages[1]["content"]
    assert json.loads(rollout.messages[1]["content"]).keys() == {"error"}


def test_it_ends_after_so_many_turns(tool_world):
    engine = tool_world.says(hermes("calculator", expression="1+1"))
    rollout = tool_world.run(engine, "tools", {"max_turns": 3}, max_sequence_tokens=4000)
    assert len(rollout.turns) == 3


def test_plain_json_is_a_call_where_the_template_has_no_tags():
    assert format_of("{{ messages }}") == format_of(None) == "json"
    assert format_of(TOOLS_TEMPLATE.read_text()) == "hermes"
    reply = read_reply('{"name": "add", "parameters": {"a": 1}}', "json")
    assert reply.calls == (ToolCall("add", {"a": 1}),)
    assert read_reply('The object {"name": "add"} is JSON.', "json").calls == ()
    assert read_reply('{"a": 1}', "json") == read_reply('{"a": 1}', "json")
    assert read_reply('{"a": 1}', "json").calls == ()


def test_arguments_may_be_json_in_text_as_openai_writes_them():
    text = json.dumps({"name": "add", "arguments": json.dumps({"a": 1})})
    assert read_reply(text, "json").calls == (ToolCall("add", {"a": 1}),)


@given(st.text())
def test_reading_never_raises(text):
    for form in ("hermes", "json"):
        read_reply(text, form)
        read_reply(f"<tool_call>{text}", form)


@pytest.mark.skipif(not CHATS.exists(), reason="shared data is not there")
def test_what_the_template_writes_of_real_chats_is_read_back(tool_world):
    calls = 0
    for line in CHATS.read_text(encoding="utf-8").splitlines():
        for message in json.loads(json.loads(line)["messages"]):
            if not message.get("tool_calls"):
                continue
            text = tool_world.encoder.prompts.render(
                "a chat", [{**message, "content": message.get("content") or ""}], (), prompt=False
            )
            reply = read_reply(text.removeprefix("<|assistant|>\n").removesuffix("<|end|>\n"), "hermes")
            asked = [call["function"] for call in message["tool_calls"]]
            assert [(c.name, c.arguments, c.fault) for c in reply.calls] == [
                (function["name"], function["arguments"], None) for function in asked
            ]
            assert reply.content == (message.get("content") or "").strip()
            calls += len(asked)
    assert calls > 5


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("2 + 3 * 4", "14"),
        ("(1584 * 327)", "517968"),
        ("7 / 2", "3.5"),
        ("6 / 2", "3"),
        ("-2 ** 2", "-4"),
        ("7 // 2", "3"),
    ],
)
def test_the_calculator(expression, value):
    assert calculator(expression) == value


@pytest.mark.parametrize(
    "expression",
    ["__import__('os')", "a + 1", "9 ** 9 ** 9", "(-8) ** 0.5", "", "2 +", "1e308 * 10", "[1]", "True + 1"],
)
def test_the_calculator_runs_no_code(expression):
    with pytest.raises(ValueError, match=r"arithmetic|power|finite"):
        calculator(expression)


def test_a_function_that_does_not_describe_itself_is_refused(user_file):
    with pytest.raises(ConfigError, match="the function silent does not describe itself"):
        load_workflow(Workflow(name="tools", args={"tools": [f"{user_file(WEATHER)}:silent"]}))
