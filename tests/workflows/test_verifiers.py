"""Environments of verifiers as workflows."""

from __future__ import annotations

from pathlib import Path

import pytest

from strop.config.schema.rollout import WorkflowConfig
from strop.errors import ConfigError
from strop.workflows.registry import load_workflow
from tests.workflows.conftest import trained_texts

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


@pytest.fixture
def run(world, user_file):
    """One rollout in an environment: the example, or one that is broken."""

    def rollout(*texts, broken=False, room=None):
        file = user_file(BROKEN) if broken else REPEAT
        args = {"environment": f"{file}:load_environment", "args": {"kind": "single"} if broken else {}}
        prompt = [{"role": "user", "content": "Say 1."}]
        columns = {"prompt_value": prompt, "extra": {"answer": "1", "example_id": 1}}
        task = world.task("Say 1.", answer="1", **columns)
        limit = {} if room is None else {"max_sequence_tokens": len(task.prompt_ids) + room}
        return world.run(world.says(*texts), "verifiers", args, task=task, **limit)

    return rollout


def test_a_rollout_is_recorded_and_scored_by_the_rubric(world, run):
    rollout = run("1", "2")
    assert (rollout.error, rollout.reward, rollout.status) == (None, 0.5, "ok")
    assert rollout.reward_parts["workflow/share_right"] == 0.5
    assert trained_texts(world, rollout) == ["1<|end|>2<|end|>"]
    assert [message["role"] for message in rollout.messages] == ["assistant", "user", "assistant"]


def test_an_error_of_the_environment_fails_the_rollout(run):
    rollout = run("1", broken=True)
    assert rollout.status == "error" and "failed" in str(rollout.error)


def test_an_empty_reply_has_reward_0(run):
    rollout = run("1", "")
    assert (rollout.error, rollout.reward, len(rollout.turns)) == (None, 0.0, 2)


def test_a_conversation_without_room_is_truncated(run):
    rollout = run("1", room=2)
    assert (rollout.error, rollout.status, len(rollout.turns)) == (None, "truncated", 1)


def test_rewards_of_groups_and_unknown_environments_are_refused(user_file):
    group = {"environment": f"{user_file(BROKEN)}:load_environment", "args": {"kind": "group"}}
    with pytest.raises(ConfigError, match="compares the rollouts of a group"):
        load_workflow(WorkflowConfig(name="verifiers", args=group))
    with pytest.raises(ConfigError, match="'none-such' cannot be loaded"):
        load_workflow(WorkflowConfig(name="verifiers", args={"environment": "none-such"}))
