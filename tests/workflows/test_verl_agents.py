"""verl's agent loops: chosen by the task, and classes of the user."""

from __future__ import annotations

from dataclasses import replace

import pytest
import yaml

from strop.config.schema.workflow import WorkflowConfig
from strop.errors import ConfigError
from strop.workflows.experiences import rollout_to_experiences
from strop.workflows.registry import load_workflow
from tests.workflows.test_tools import hermes

TOOLS = {"tools": ["calculator"]}
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


def test_the_column_agent_name_chooses(tool_world):
    texts = [hermes("calculator", expression="1+1"), "2"]
    for default, column, turns in [
        ("single_turn_agent", None, 1),
        ("tool_agent", None, 2),
        ("single_turn_agent", "tool_agent", 2),
        ("tool_agent", "single_turn_agent", 1),
    ]:
        task = tool_world.task(extra={} if column is None else {"agent_name": column})
        args = {"default_agent": default, "tools": TOOLS}
        rollout = tool_world.run(
            tool_world.says(*texts), "verl_agents", args, task=task, max_sequence_tokens=4000
        )
        assert (rollout.error, len(rollout.turns)) == (None, turns)


def test_unknown_agents(tool_world):
    rollout = tool_world.run(
        tool_world.says("2"), "verl_agents", {}, task=tool_world.task(extra={"agent_name": "none"})
    )
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


def test_an_agent_loop_class(world, user_file, tmp_path):
    rollout = agent_loop(world, user_file, tmp_path, BOTH)
    assert rollout.error is None
    assert rollout.text == "twofourthree"
    assert rollout.info == {"steps": 2, "num_turns": 4}
    (experience,) = rollout_to_experiences(replace(rollout, reward=1.0), "")
    trained = world.tokenizer.decode(experience.token_ids[experience.loss_mask], skip_special_tokens=True)
    assert trained == "twothree"


def test_the_mask_of_an_agent_loop_selects_replies(world, user_file, tmp_path):
    rollout = agent_loop(world, user_file, tmp_path, SECOND)
    assert [world.tokenizer.decode(t.completion_ids, skip_special_tokens=True) for t in rollout.turns] == [
        "three"
    ]
    assert "not complete replies" in agent_loop(world, user_file, tmp_path, WRONG).error
