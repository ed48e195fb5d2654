"""Tool calling: parsing, execution, and training on the model's own tokens only."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strop.config.schema.workflow import WorkflowConfig
from strop.data.encoding.tool_calls import ToolCall, parse_reply, tool_call_format
from strop.errors import ConfigError
from strop.workflows.builtin.calculator import calculator
from strop.workflows.experiences import rollout_to_experiences
from strop.workflows.registry import load_workflow
from tests.datasets import read_rows
from tests.workflows.conftest import TOOLS_TEMPLATE


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


def test_tool_results_are_in_the_prompt_and_not_trained_on(tool_world, user_file):
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
        (hermes("wether", city="Oslo"), "there is no tool 'wether'; the tools are weather"),
        (hermes("weather", city="Atlantis"), "LookupError: no such city"),
        (hermes("weather", town="Oslo"), "unexpected keyword argument 'town'"),
        ("<tool_call>{not json}</tool_call>", "this is not JSON"),
        ("<tool_call>[1]</tool_call>", "a call must be {"),
        ('<tool_call>{"name": "weather", "arguments": 3}</tool_call>', "its arguments are not an object"),
        ('<tool_call>{"name": "weather"', "this is not JSON"),
    ],
)
def test_the_model_gets_the_error_of_a_failed_call(tool_world, user_file, said, told):
    engine = tool_world.says(said, "sorry")
    rollout = tool_world.run(
        engine, "tools", {"tools": [f"{user_file(WEATHER)}:weather"]}, max_sequence_tokens=4000
    )
    assert (rollout.status, rollout.text) == ("ok", "sorry")
    assert told in rollout.response_messages[1]["content"]
    assert json.loads(rollout.response_messages[1]["content"]).keys() == {"error"}


def test_conversation_ends_after_max_turns(tool_world):
    engine = tool_world.says(hermes("calculator", expression="1+1"))
    rollout = tool_world.run(engine, "tools", {"max_turns": 3}, max_sequence_tokens=4000)
    assert len(rollout.turns) == 3


def test_plain_json_is_a_call_if_the_template_has_no_tags():
    assert tool_call_format("{{ messages }}") == tool_call_format(None) == "json"
    assert tool_call_format(TOOLS_TEMPLATE.read_text()) == "hermes"
    reply = parse_reply('{"name": "add", "parameters": {"a": 1}}', "json")
    assert reply.calls == (ToolCall("add", {"a": 1}),)
    assert parse_reply('The object {"name": "add"} is JSON.', "json").calls == ()
    assert parse_reply('{"a": 1}', "json") == parse_reply('{"a": 1}', "json")
    assert parse_reply('{"a": 1}', "json").calls == ()


def test_arguments_may_be_json_text():
    text = json.dumps({"name": "add", "arguments": json.dumps({"a": 1})})
    assert parse_reply(text, "json").calls == (ToolCall("add", {"a": 1}),)


HARMONY = (
    '<|channel|>analysis<|message|>I need to=functions.add {"a": 9}<|end|>'
    "<|start|>assistant<|channel|>commentary<|message|>Adding.<|end|>"
    '<|start|>assistant<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a": 1}<|call|>'
    '<|start|>assistant to=functions.sub<|channel|>commentary json<|message|>{"b": 2}<|call|>'
)


def test_calls_of_gpt_oss():
    """Forms of a call, and of the reasoning, that the Harmony page shows."""
    reply = parse_reply(HARMONY, "gpt_oss")
    assert reply.content == "Adding."
    assert reply.calls == (ToolCall("add", {"a": 1}), ToolCall("sub", {"b": 2}))
    answer = "<|channel|>final<|message|>It is 3.<|return|>"
    assert parse_reply(answer, "gpt_oss").content == "It is 3."
    assert parse_reply(answer, "gpt_oss").calls == ()
    (broken,) = parse_reply("<|channel|>commentary to=functions.add<|message|>{<|call|>", "gpt_oss").calls
    assert "not JSON" in str(broken.parse_error)
    assert tool_call_format("<|start|>assistant<|channel|>analysis<|message|>") == "gpt_oss"


@given(st.text())
def test_reading_never_raises(text):
    for form in ("hermes", "json", "qwen3_coder", "gpt_oss"):
        parse_reply(text, form)
        parse_reply(f"<tool_call>{text}", form)


def test_calls_in_real_chats_are_parsed_back(tool_world):
    calls = 0
    for row in read_rows("sft_with_tools/sft_with_tools.jsonl"):
        for message in json.loads(row["messages"]):
            if not message.get("tool_calls"):
                continue
            text = tool_world.encoder.prompts.render(
                "a chat", [{**message, "content": message.get("content") or ""}], (), prompt=False
            )
            reply = parse_reply(text.removeprefix("<|assistant|>\n").removesuffix("<|end|>\n"), "hermes")
            asked = [call["function"] for call in message["tool_calls"]]
            assert [(c.name, c.arguments, c.parse_error) for c in reply.calls] == [
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
def test_calculator_executes_no_code(expression):
    with pytest.raises(ValueError, match=r"arithmetic|power|finite"):
        calculator(expression)


def test_function_without_a_description_is_rejected(user_file):
    with pytest.raises(ConfigError, match="the function silent has no complete description"):
        load_workflow(WorkflowConfig(name="tools", args={"tools": [f"{user_file(WEATHER)}:silent"]}))
