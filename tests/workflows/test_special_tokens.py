"""Tags that are special tokens reach what reads a rollout's text, and calls in the reasoning are not executed."""

from __future__ import annotations

import pytest
import yaml
from transformers import PreTrainedTokenizerFast

from strop.rewards.builtin.format import format_reward
from tests.workflows.conftest import TOOLS_TEMPLATE, World, call
from tests.workflows.test_verl_agents import LOOP

TAGS = ["<think>", "</think>", "<answer>", "</answer>", "<tool_call>", "</tool_call>"]
ANSWER = "<think>two and two</think><answer>4</answer>"
AGENT = """
def ask(task, client):
    said = [{"role": "user", "content": "two and two"}]
    reply = client.chat.completions.create(model="policy", messages=said, tools=TOOLS).choices[0].message
    return "|".join([reply.content or "", *(call.function.name for call in reply.tool_calls or ())])

TOOLS = [{"type": "function", "function": {"name": "calculator", "parameters": {"type": "object", "properties": {}}}}]
"""


@pytest.fixture(scope="module")
def tagged(world) -> World:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(world.folder)
    tokenizer.add_tokens(TAGS, special_tokens=True)
    return World(world.folder, tokenizer, str(TOOLS_TEMPLATE), max_sequence_tokens=6000)


def test_the_reply_has_its_tags(tagged):
    rollout = tagged.run(tagged.says(ANSWER), "single_turn")
    assert (rollout.text, rollout.response_messages[0]["content"]) == (ANSWER, ANSWER)
    assert format_reward(rollout.text) == 1


@pytest.mark.parametrize("scored", ["reply", "response"])
def test_tools_get_their_calls_and_rewards_the_tags(tagged, scored):
    said = f"<think>I use <tool_call> now.</think>{call('calculator', expression='2+2')}"
    rollout = tagged.run(tagged.says(said, ANSWER), "tools", {"scored": scored})
    assert rollout.error is None
    assert [message["content"] for message in rollout.response_messages] == [said, "4", ANSWER]
    between = "\n\n<tool_response>\n4\n</tool_response>\n\n"
    assert rollout.text == (ANSWER if scored == "reply" else said + between + ANSWER)


@pytest.mark.parametrize("opens", [False, True], ids=["own mark", "mark in the prompt"])
@pytest.mark.parametrize("closed", [False, True], ids=["open", "closed"])
def test_calls_in_the_reasoning_are_not_executed(tagged, tmp_path, opens, closed):
    template = TOOLS_TEMPLATE.read_text()
    if opens:
        template = template.rstrip().removesuffix("{% endif %}").removesuffix("{%- endif %}").rstrip()
        template += "{{ '<think>\\n' }}{% endif %}"
    world = World(tagged.folder, tagged.tokenizer, template, max_sequence_tokens=6000)
    said = ("" if opens else "<think>") + f"I could say {call('calculator', expression='1+1')}"
    said += f"</think>{call('calculator', expression='2+2')}" if closed else ""
    engine = world.says(said, "4")
    rollout = world.run(engine, "tools")
    assert rollout.error is None
    assert world.tokenizer.decode(engine.requests[0].prompt_ids).rstrip().endswith("<think>") is opens
    assert [message["content"] for message in rollout.response_messages] == [
        said,
        *(["4", "4"] if closed else []),
    ]


@pytest.mark.parametrize("closed", [False, True], ids=["open", "closed"])
def test_the_endpoint_has_no_calls_of_the_reasoning(tagged, user_file, closed):
    said = f"<think>Perhaps {call('calculator', expression='1+1')}"
    said += f"</think>Yes.{call('calculator', expression='2+2')}" if closed else ""
    rollout = tagged.run(tagged.says(said), "agent", {"function": f"{user_file(AGENT)}:ask"})
    expected = said.removesuffix(call("calculator", expression="2+2")) + "|calculator" if closed else said
    assert (rollout.error, rollout.text) == (None, expected)


def test_agent_loops_of_verl_are_scored_with_their_tags(tagged, user_file, tmp_path):
    path = tmp_path / "agents.yaml"
    mask = "[1] * len(first.token_ids) + [0] * len(between) + [1] * len(second.token_ids)"
    file = user_file(LOOP.replace("MASK", mask))
    path.write_text(yaml.safe_dump([{"name": "twice", "_target_": f"{file}:Twice"}]))
    config = {"data": {}, "actor_rollout_ref": {"rollout": {"word": "<|user|><answer>"}, "model": {}}}
    args = {"default_agent": "twice", "agent_loops": str(path), "config": config}
    rollout = tagged.run(tagged.says(ANSWER, "<think>"), "verl_agents", args)
    assert (rollout.error, rollout.text) == (None, f"{ANSWER}<answer><think>")
