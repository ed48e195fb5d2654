"""A priority queue between explorer and trainer, one of which is killed: that adds no use to any group."""

from __future__ import annotations

from pathlib import Path

import pytest

from .groups_by_id import assert_as_often_as_allowed, assert_each_once
from .test_launch import group_ids, kill_one, start, wait_for

STEPS = 8


def settings(values, **changes):
    """Eight steps of eight tasks, whose answers are scored slowly: the trainer is the quicker one."""
    return values(
        reward=f"{Path(__file__).parent / 'rewards.py'}:slowly",
        synchronizer={"type": "checkpoint", "style": {"type": "latest"}},
        trainer__duration=f"{STEPS} steps",
        checkpoint__every="2 steps",
        data__eval=[],
        evaluate={},
        **changes,
    )


@pytest.mark.faults
@pytest.mark.parametrize("cooldown", [None, 0.1], ids=["once", "again"])
def test_a_trainer_that_is_killed_learns_from_each_as_often_as_it_may(values, tmp_path, cooldown):
    buffer = {"type": "priority", "reuse_cooldown_seconds": cooldown}
    process = start(tmp_path, settings(values, buffer=buffer, name="killed"))
    folder = tmp_path / "runs" / "strop" / "killed"
    wait_for(folder / "metrics.jsonl", lines=4, process=process)
    assert kill_one(process, "trainer")
    output, _ = process.communicate()
    assert process.returncode == 0, output
    assert "It is restarted" in output
    if cooldown is None:
        assert_each_once(folder, group_ids(STEPS))
    else:
        assert_as_often_as_allowed(folder, folder / "buffer.db")
