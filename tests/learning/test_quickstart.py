"""The main job learns two-digit sums: the quickstart, its task in two processes and in one file, and other algorithms.

CI runs the quickstart for as long as a rise needs, one seed; `make evidence ARGS=learning` runs three.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import strop
from benchmarks import distributed
from tests.cases import nightly
from tests.learning.curves import HELD_OUT, column

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "quickstart"


def run_python(*arguments: object) -> str:
    """Run Python, which must succeed, and return what it prints."""
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(("steps", "rise", "accuracy"), [(15, 0.1, 0.5), *nightly((200, 0.4, 0.9))])
def test_the_quickstart_learns_two_digit_sums(
    tmp_path: Path, steps: int, rise: float, accuracy: float
) -> None:
    """In 15 steps, held-out accuracy was seen to rise from 0.43 to 0.69."""
    shown = run_python("-m", "strop", "quickstart", "--steps", steps, "--out", tmp_path / "quickstart")
    folder = tmp_path / "quickstart" / "sums"
    measured = column(folder, HELD_OUT)
    assert measured[-1] >= max(accuracy, measured[0] + rise), measured
    assert len(measured) == -(-steps // 25) + 1, "before, during and after"
    for part in ("model", "metrics.jsonl", "rollouts", "report.html"):
        assert (folder / part).exists()
        assert str(folder / part) in shown


@pytest.fixture
def quickstart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The quickstart's module, for a folder of its own."""
    monkeypatch.syspath_prepend(EXAMPLE)
    monkeypatch.syspath_prepend(EXAMPLE.parent)
    monkeypatch.setenv("QUICKSTART", str(tmp_path))
    return importlib.import_module("quickstart")


def test_its_warm_start_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quickstart: ModuleType
) -> None:
    """In a few updates: what the quickstart calls is not only the command line."""
    warm_up = importlib.import_module("warm_up")
    monkeypatch.setattr(warm_up, "MOST_UPDATES", warm_up.UPDATES_BETWEEN_LOOKS)
    quickstart.prepare(tmp_path, seed=1)
    assert (tmp_path / "warm-start" / "model.safetensors").is_file()


@pytest.mark.nightly
def test_grpo_in_one_file_learns_the_same_task(tmp_path: Path, quickstart: ModuleType) -> None:
    """From the quickstart's warm start, the mean reward of five steps rises by more than 0.2 in 40 steps."""
    quickstart.prepare(tmp_path, seed=1)
    example = importlib.import_module("grpo_in_one_file")
    with strop.Policy(tmp_path / "warm-start") as policy:
        rewards = example.train(policy, example.sums(), example.is_right, steps=40)
    assert sum(rewards[-5:]) / 5 > sum(rewards[:5]) / 5 + 0.2


@pytest.mark.nightly
def test_rollouts_of_weights_two_steps_old_reach_the_accuracy(tmp_path: Path, quickstart: ModuleType) -> None:
    """With a lead of 1 step and new weights every 2 steps, rollouts are up to 2 steps old; the run is deterministic.

    The run is shorter than the quickstart; docs/modes.md has the results at full length.
    """
    pytest.importorskip("sqlalchemy")
    quickstart.prepare(tmp_path, seed=1)
    style = "synchronizer.style={type: fixed, every: 2 steps, max_lead: 1 steps}"
    rows, *_ = distributed.run(tmp_path, "stale", 120, style)
    measured = [row[HELD_OUT] or 0.0 for row in rows if HELD_OUT in row]
    staleness = [row["staleness/max"] or 0.0 for row in rows if "staleness/max" in row]
    assert measured[0] < 0.5
    assert measured[-1] >= 0.9
    assert max(staleness) == 2 and sum(steps > 0 for steps in staleness) > 110


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["ppo", "dapo", "distillation"])
def test_other_algorithms_lift_held_out_accuracy_by_a_fifth(name: str, tmp_path: Path) -> None:
    """A critic, DAPO's parts, and a teacher without a reward; docs/results.md has them all."""
    run_python(ROOT / "benchmarks" / "learning.py", "--only", name, "--seeds", 1, "--out", tmp_path)
    measured = json.loads((tmp_path / "measured" / f"{name}-1.json").read_text())
    accuracy = measured["values"][HELD_OUT]
    assert accuracy[0] < 0.5
    assert accuracy[-1] >= accuracy[0] + 0.2
