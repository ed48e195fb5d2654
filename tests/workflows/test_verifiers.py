"""Environments of verifiers as workflows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from strop.config.schema.workflow import WorkflowConfig
from strop.errors import ConfigError
from strop.workflows.experiences import rollout_to_experiences
from strop.workflows.registry import load_workflow

pytest.importorskip("verifiers")
REPEAT = Path(__file__).parents[2] / "examples" / "environments" / "repeat.py"
BROKEN = """
import verifiers as vf
from datasets import Dataset

def load_environment(kind):
    class Broken(vf.MultiTurnEnv):
        async def env_response(self, messages, state, **kwargs):
            raise vf.ToolCallError("the shop is closed")
    def compare(completions, **kwargs):
        return [0.0 for _ in completions]
    def one(completion):
        return 1.0
    rubric = vf.Rubric(funcs=[compare if kind == "group" else one])
    return Broken(dataset=Dataset.from_list([{"question": "a", "answer": "b"}]), rubric=rubric, max_turns=2)
"""


def task(world: Any) -> Any:
    prompt = [{"role": "user", "content": "Say 1."}]
    return world.task("Say 1.", answer="1", prompt_value=prompt, extra={"answer": "1", "example_id": 1})


def test_a_rollout_is_recorded_and_scored_by_the_rubric(world: Any) -> None:
    args = {"environment": f"{REPEAT}:load_environment"}
    rollout = world.run(world.says("1", "2"), "verifiers", args, task=task(world))
    assert (rollout.error, rollout.reward, rollout.status) == (None, 0.5, "ok")
    assert rollout.reward_parts["workflow/share_right"] == 0.5
    first, second = rollout.turns
    (experience,) = rollout_to_experiences(rollout, "")
    assert experience.token_ids[experience.loss_mask].tolist() == [
        *first.completion_ids,
        *second.completion_ids,
    ]
    assert [message["role"] for message in rollout.messages] == ["assistant", "user", "assistant"]


def test_an_error_of_the_environment_fails_the_rollout(world: Any, user_file: Any) -> None:
    args = {"environment": f"{user_file(BROKEN)}:load_environment", "args": {"kind": "single"}}
    rollout = world.run(world.says("1"), "verifiers", args, task=task(world))
    assert rollout.status == "error" and "failed" in str(rollout.error)


def test_an_empty_reply_has_reward_0(world: Any) -> None:
    args = {"environment": f"{REPEAT}:load_environment"}
    rollout = world.run(world.says("1", ""), "verifiers", args, task=task(world))
    assert (rollout.error, rollout.reward, len(rollout.turns)) == (None, 0.0, 2)


def test_a_conversation_without_room_is_truncated(world: Any) -> None:
    args = {"environment": f"{REPEAT}:load_environment"}
    tokens = len(task(world).prompt_ids) + 2
    rollout = world.run(world.says("1"), "verifiers", args, task=task(world), max_sequence_tokens=tokens)
    assert (rollout.error, rollout.status, len(rollout.turns)) == (None, "truncated", 1)


def test_rewards_of_groups_and_unknown_environments_are_refused(user_file: Any) -> None:
    group = {"environment": f"{user_file(BROKEN)}:load_environment", "args": {"kind": "group"}}
    with pytest.raises(ConfigError, match="compares the rollouts of a group"):
        load_workflow(WorkflowConfig(name="verifiers", args=group))
    with pytest.raises(ConfigError, match="'none-such' cannot be loaded"):
        load_workflow(WorkflowConfig(name="verifiers", args={"environment": "none-such"}))
