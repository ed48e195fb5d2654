"""Tool calling: parsing, execution, and training on the model's own tokens only."""

from __future__ import annotations

import json

import pytest

from strop.config.schema.rollout import WorkflowConfig
from strop.data.encoding.reply import parse_reply
from strop.errors import ConfigError
from strop.workflows.registry import load_workflow
from strop.workflows.tool import calculator
from tests.datasets import read_rows
from tests.workflows.conftest import call, trained_texts

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
        "let me see " + call("weather", city="Oslo") + call("calculator", expression="2*(3+4)"),
        "21 degrees, and 14",
    )
    tools = ["calculator", f"{user_file(WEATHER)}:weather"]
    rollout = tool_world.run(engine, "tools", {"tools": tools})
    assert (rollout.error, rollout.text) == (None, "21 degrees, and 14")
    first, second = (tool_world.tokenizer.decode(request.prompt_ids) for request in engine.requests)
    assert '"name": "calculator"' in first
    assert '"description": "The weather of a city."' in first
    assert second.startswith(first)
    assert '<tool_response>\n{"city": "Oslo", "degrees": 21, "unit": "celsius"}\n</tool_response>' in second
    assert "<tool_response>\n14\n</tool_response>" in second
    (trained,) = trained_texts(tool_world, rollout)
    assert "tool_response" not in trained
    assert trained.endswith("</tool_call><|end|>21 degrees, and 14<|end|>")


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (call("wether", city="Oslo"), "there is no tool 'wether'; the tools are weather"),
        (call("weather", city="Atlantis"), "LookupError: no such city"),
        (call("weather", town="Oslo"), "unexpected keyword argument 'town'"),
        ("<tool_call>{not json}</tool_call>", "this is not JSON"),
        ("<tool_call>[1]</tool_call>", "a call must be {"),
        ('<tool_call>{"name": "weather", "arguments": 3}</tool_call>', "its arguments are not an object"),
        ('<tool_call>{"name": "weather"', "this is not JSON"),
    ],
)
def test_the_model_gets_the_error_of_a_failed_call(tool_world, user_file, said, told):
    engine = tool_world.says(said, "sorry")
    rollout = tool_world.run(engine, "tools", {"tools": [f"{user_file(WEATHER)}:weather"]})
    assert (rollout.status, rollout.text) == ("ok", "sorry")
    assert told in rollout.response_messages[1]["content"]
    assert json.loads(rollout.response_messages[1]["content"]).keys() == {"error"}


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
            asked = [each["function"] for each in message["tool_calls"]]
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
