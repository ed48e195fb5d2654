"""verl's agent loops: chosen by the task, and classes of the user."""

from __future__ import annotations

import pytest
import yaml

from strop.config.schema.rollout import WorkflowConfig
from strop.errors import ConfigError
from strop.workflows.registry import load_workflow
from tests.workflows.conftest import call, trained_texts

LOOP = '''
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput, register

@register("twice")
class Twice(AgentLoopBase):
    """Samples two replies with a word between them."""

    async def run(self, sampling_params, **kwargs):
        ids = self.tokenizer.apply_chat_template(kwargs["raw_prompt"], add_generation_prompt=True, tokenize=True)
        ids = list(ids["input_ids"] if hasattr(ids, "keys") else ids)
        first = await self.server_manager.generate("r", prompt_ids=ids, sampling_params=sampling_params)
        between = self.tokenizer.encode(self.rollout_config.word, add_special_tokens=False)
        second = await self.server_manager.generate(
            "r", prompt_ids=ids + first.token_ids + between, sampling_params=sampling_params
        )
        return AgentLoopOutput(
            prompt_ids=ids,
            response_ids=first.token_ids + between + second.token_ids,
            response_mask=MASK,
            num_turns=4,
            metrics=AgentLoopMetrics(),
            extra_fields={"steps": 2},
        )
'''
BOTH = "[1] * len(first.token_ids) + [0] * len(between) + [1] * len(second.token_ids)"
SECOND = "[0] * len(first.token_ids + between) + [1] * len(second.token_ids)"
WRONG = "[1] * len(first.token_ids + between + second.token_ids)"


@pytest.mark.parametrize(
    ("default", "column", "turns"),
    [
        ("single_turn_agent", {}, 1),
        ("tool_agent", {}, 2),
        ("single_turn_agent", {"agent_name": "tool_agent"}, 2),
        ("tool_agent", {"agent_name": "single_turn_agent"}, 1),
    ],
)
def test_the_column_agent_name_chooses(tool_world, default, column, turns):
    args = {"default_agent": default, "tools": {"tools": ["calculator"]}}
    engine = tool_world.says(call("calculator", expression="1+1"), "2")
    rollout = tool_world.run(engine, "verl_agents", args, task=tool_world.task(extra=column))
    assert (rollout.error, len(rollout.turns)) == (None, turns)


def test_unknown_agents(tool_world):
    task = tool_world.task(extra={"agent_name": "none"})
    rollout = tool_world.run(tool_world.says("2"), "verl_agents", {}, task=task)
    assert "agent_name is 'none'; the agent loops are single_turn_agent, tool_agent" in rollout.error
    with pytest.raises(ConfigError, match="default_agent is 'none'"):
        load_workflow(WorkflowConfig(name="verl_agents", args={"default_agent": "none"}))


def agent_loop(world, user_file, tmp_path, mask):
    path = tmp_path / "agents.yaml"
    file = user_file(LOOP.replace("MASK", mask))
    path.write_text(yaml.safe_dump([{"name": "twice", "_target_": f"{file}:Twice"}]))
    config = {"data": {}, "actor_rollout_ref": {"rollout": {"word": "four"}, "model": {}}}
    args = {"default_agent": "twice", "agent_loops": str(path), "config": config}
    return world.run(world.says("two", "three"), "verl_agents", args)


@pytest.mark.parametrize(("mask", "trained"), [(BOTH, "two<|end|>three<|end|>"), (SECOND, "three<|end|>")])
def test_the_mask_of_an_agent_loop_class_selects_replies(world, user_file, tmp_path, mask, trained):
    rollout = agent_loop(world, user_file, tmp_path, mask)
    assert (rollout.error, rollout.text) == (None, "twofourthree")
    assert rollout.info == {"steps": 2, "num_turns": 4}
    assert trained_texts(world, rollout) == [trained]


def test_a_mask_of_more_than_replies_is_refused(world, user_file, tmp_path):
    assert "not complete replies" in agent_loop(world, user_file, tmp_path, WRONG).error
