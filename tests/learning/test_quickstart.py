"""The main job learns: held-out accuracy starts below 0.5 and ends at 0.9 or more, for any seed."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart" / "quickstart.py"
HELD_OUT = "eval/held-out/reward"


@pytest.mark.learning
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_quickstart_learns_two_digit_sums(seed, tmp_path):
    done = subprocess.run(
        [sys.executable, str(QUICKSTART), "--seed", str(seed), "--out", str(tmp_path / "quickstart")],
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


def test_its_warm_start_is_made(tmp_path, monkeypatch):
    """In a few updates, whenever tests run: what the quickstart calls is not only the command line."""
    monkeypatch.syspath_prepend(QUICKSTART.parent)
    monkeypatch.setenv("QUICKSTART", str(tmp_path))
    warm_up = importlib.import_module("warm_up")
    monkeypatch.setattr(warm_up, "MOST_UPDATES", warm_up.UPDATES_BETWEEN_LOOKS)
    importlib.import_module("quickstart").prepare(tmp_path, seed=1)
    assert (tmp_path / "warm-start" / "model.safetensors").is_file()
