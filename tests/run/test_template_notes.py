"""Warnings about a run's chat template: tools that it does not render, and the end of a turn."""

from __future__ import annotations

import pytest
from transformers import AutoTokenizer

from strop.config.schema import Run
from strop.data.encoding.model_tokens import ModelTokens
from strop.models.tiny import make_tokenizer
from strop.run.tokenizer import template_notes

PLAIN = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
WITH_TOOLS = "{% if tools %}{{ tools | tojson }}{% endif %}" + PLAIN
SAMPLED = {"reward": "exact"}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    make_tokenizer(folder, ["one two"], vocab_size=300)
    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture
def notes(tokenizer):
    """A function that gives the notes of a run."""

    def notes(template, end_ids=(1,), rollout=None, **sections):
        data = {"train": {"path": "t.jsonl"}, "chat_template": template}
        given = {"model": {"path": "m"}, "data": data, "rollout": rollout or {}, **sections}
        run = Run.model_validate(given)
        return list(template_notes(run, tokenizer, ModelTokens("m", frozenset(end_ids), None)))

    return notes


TOOLS = {"workflow": {"name": "tools"}}


@pytest.mark.parametrize(
    ("rollout", "says"),
    [
        (TOOLS, "rollout.workflow tools: the model is not told of its tools"),
        ({"workflow": {"name": "tools", "args": {"tool_config": "mcp.yaml"}}}, "rollout.workflow tools: "),
        ({"workflow": {"name": "verl_agents", "args": {"default_agent": "tool_agent"}}}, "verl_agents: "),
        ({"workflow": {"name": "tools", "args": {"interaction_config": "i.yaml"}}}, None),
        ({"workflow": {"name": "tools", "args": {"tools": []}}}, None),
        ({"workflow": {"name": "verl_agents"}}, None),
        (
            {"workflow": {"name": "verl_agents", "args": {"tools": {"tool_config": "t.yaml"}}}},
            "verl_agents: ",
        ),
        ({}, None),
    ],
)
def test_tools_of_a_workflow(notes, rollout, says):
    found = notes(PLAIN, rollout=rollout, **SAMPLED)
    assert len(found) == (says is not None)
    assert all(says in note and "the chat template does not render tools" in note for note in found)
    assert notes(WITH_TOOLS, rollout=rollout, **SAMPLED) == []


def test_no_template_has_no_tools(notes):
    (found,) = notes("none", rollout=TOOLS, **SAMPLED)
    assert "data.chat_template: none encodes one plain text without tools" in found


@pytest.mark.parametrize(
    ("end_ids", "sampling", "is_named"),
    [
        ([0], {}, True),
        ([0, 1], {}, False),
        ([0], {"stop": ["<|end|>"]}, False),
        ([0], {"ignore_eos": True}, False),
    ],
)
def test_the_end_of_a_turn_is_compared_with_the_end_tokens_of_sampling(notes, end_ids, sampling, is_named):
    found = notes(PLAIN, end_ids=end_ids, rollout={"sampling": sampling}, **SAMPLED)
    assert [
        "ends a turn with '<|end|>' (id 1), at which sampling does not stop" in note for note in found
    ] == [True] * is_named
