"""Environments of verifiers 0.4 as workflows."""

from __future__ import annotations

from pathlib import Path

import pytest

from strop.config.schema.data import GeneratorConfig
from strop.config.schema.rollout import WorkflowConfig
from strop.data.sources.generators import generate_rows
from strop.errors import ConfigError
from strop.workflows.registry import load_workflow
from tests.workflows.conftest import trained_texts

pytest.importorskip("verifiers.v1.episode", reason="verifiers 0.4 is not installed: make environments")
REPEAT = str(Path(__file__).parents[2] / "examples" / "environments" / "repeat_episodes.py")
ARGS = {"agent": {"runtime": {"type": "subprocess"}}}


@pytest.fixture
def run(world):
    rows = [*generate_rows(f"verifiers://{REPEAT}", GeneratorConfig(args=ARGS), None)]

    def rollout(*texts, row=1, room=None):
        prompt = [{"role": "user", "content": rows[row]["prompt"]}]
        task = world.task(rows[row]["prompt"], prompt_value=prompt, extra={"task": rows[row]["task"]})
        limit = {} if room is None else {"max_sequence_tokens": len(task.prompt_ids) + room}
        args = {"environment": REPEAT, "args": ARGS}
        return world.run(world.says(*texts), "verifiers", args, task=task, **limit)

    return rollout


def test_an_episode_is_recorded_and_scored_by_its_task(world, run):
    rollout = run("1", "2")
    assert (rollout.error, rollout.reward, rollout.status) == (None, 0.5, "ok")
    assert rollout.reward_parts["workflow/share_right"] == 0.5
    assert trained_texts(world, rollout) == ["1<|end|>2<|end|>"]


def test_a_conversation_without_room_is_truncated(run):
    rollout = run("1", room=2)
    assert (rollout.error, rollout.status, len(rollout.turns)) == (None, "truncated", 1)


def test_an_unknown_taskset_is_refused():
    with pytest.raises(ConfigError, match="'none-such' cannot be loaded"):
        load_workflow(WorkflowConfig(name="verifiers", args={"environment": "none-such"}))
