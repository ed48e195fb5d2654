"""Models learn in environments of other libraries."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import strop

EXAMPLES = Path(__file__).parents[2] / "examples" / "environments"


def train(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Mean rewards of the steps of an example."""
    monkeypatch.setenv("ENVIRONMENTS", str(folder))
    monkeypatch.setenv("EXAMPLES", str(EXAMPLES))
    subprocess.run([sys.executable, EXAMPLES / "make.py", folder], check=True)
    run = strop.train(strop.load(EXAMPLES / f"{name}.yaml", [f"output={folder / 'runs'}"])).folder
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert all(row["rollouts/error_fraction"] == 0 for row in rows if "rollouts/error_fraction" in row)
    return [row["reward/mean"] for row in rows if "reward/mean" in row]


@pytest.mark.learning
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["reasoning_gym", "verifiers"])
def test_the_reward_goes_up(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(name)
    rewards = train(name, tmp_path, monkeypatch)
    assert sum(rewards[:4]) / 4 < 0.3
    assert sum(rewards[-4:]) / 4 > sum(rewards[:4]) / 4 + 0.2
