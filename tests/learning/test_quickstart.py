"""The main job learns: held-out accuracy starts below 0.5 and ends at 0.9 or more.

One seed; `make evidence ARGS=learning` runs three.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import strop

QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart" / "quickstart.py"
HELD_OUT = "eval/held-out/reward"


@pytest.mark.learning
def test_the_quickstart_learns_two_digit_sums(tmp_path):
    done = subprocess.run(
        [sys.executable, str(QUICKSTART), "--seed", "1", "--out", str(tmp_path / "quickstart")],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    folder = tmp_path / "quickstart" / "sums"
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    measured = [row[HELD_OUT] for row in rows if HELD_OUT in row]
    assert measured[0] < 0.5
    assert measured[-1] >= 0.9
    assert len(measured) >= 4, "before, during and after"
    for part in ("model", "metrics.jsonl", "rollouts", "report.html"):
        assert (folder / part).exists()
        assert str(folder / part) in done.stdout


@pytest.mark.slow
def test_its_warm_start_is_made(tmp_path, monkeypatch):
    """In a few updates, whenever tests run: what the quickstart calls is not only the command line."""
    monkeypatch.syspath_prepend(QUICKSTART.parent)
    monkeypatch.setenv("QUICKSTART", str(tmp_path))
    warm_up = importlib.import_module("warm_up")
    monkeypatch.setattr(warm_up, "MOST_UPDATES", warm_up.UPDATES_BETWEEN_LOOKS)
    importlib.import_module("quickstart").prepare(tmp_path, seed=1)
    assert (tmp_path / "warm-start" / "model.safetensors").is_file()


@pytest.mark.learning
@pytest.mark.evidence
def test_grpo_in_one_file_learns_the_same_task(tmp_path, monkeypatch):
    """From the quickstart's warm start, the mean reward of five steps rises by more than 0.2 in 40 steps."""
    monkeypatch.syspath_prepend(QUICKSTART.parent)
    monkeypatch.syspath_prepend(QUICKSTART.parents[1])
    monkeypatch.setenv("QUICKSTART", str(tmp_path))
    importlib.import_module("quickstart").prepare(tmp_path, seed=1)
    run = strop.load(QUICKSTART.with_name("run.yaml")).run
    rewards = importlib.import_module("grpo_in_one_file").train(run, steps=40)
    assert sum(rewards[-5:]) / 5 > sum(rewards[:5]) / 5 + 0.2


@pytest.mark.slow
def test_grpo_in_one_file_runs_and_fits_on_a_page(tmp_path, monkeypatch):
    """Two steps from a random model, whenever tests run."""
    monkeypatch.syspath_prepend(QUICKSTART.parent)
    monkeypatch.syspath_prepend(QUICKSTART.parents[1])
    monkeypatch.setenv("QUICKSTART", str(tmp_path))
    quickstart = importlib.import_module("quickstart")
    quickstart.make_tasks(tmp_path)
    quickstart.make_model(tmp_path / "warm-start", ["12+34=46"], vocab_size=300)
    run = strop.load(QUICKSTART.with_name("run.yaml")).run
    example = importlib.import_module("grpo_in_one_file")
    assert len(example.train(run, steps=2)) == 2
    assert len(Path(example.__file__).read_text(encoding="utf-8").splitlines()) <= 150
