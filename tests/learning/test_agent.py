"""An agent that knows nothing of Strop learns: its reward goes up."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import strop

EXAMPLES = Path(__file__).parents[2] / "examples" / "workflows"


@pytest.mark.learning
def test_an_agents_reward_goes_up(tmp_path, monkeypatch):
    monkeypatch.setenv("WORKFLOWS", str(tmp_path))
    monkeypatch.setenv("EXAMPLES", str(EXAMPLES))
    subprocess.run([sys.executable, EXAMPLES / "make.py", tmp_path], check=True)
    folder = strop.train(strop.load(EXAMPLES / "agent.yaml", [f"output={tmp_path / 'runs'}"])).folder
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    held_out = [row["eval/held-out/reward"] for row in rows if "eval/held-out/reward" in row]
    assert held_out[0] < 0.3
    assert held_out[-1] > 0.8
    rewards = [row["reward/mean"] for row in rows if "reward/mean" in row]
    assert sum(rewards[-3:]) > sum(rewards[:3])
    assert all(row["rollouts/error_fraction"] == 0 for row in rows[1:])
