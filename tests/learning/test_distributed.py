"""A run with explorer and trainer in two processes reaches the accuracy of the quickstart."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from benchmarks import distributed

STYLE = "synchronizer.style={type: fixed, every: 2 steps, max_lead: 1 steps}"
QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart"


@pytest.mark.learning
@pytest.mark.evidence
def test_rollouts_of_weights_two_steps_old_reach_the_accuracy(tmp_path, monkeypatch):
    """With a lead of 1 step and new weights every 2 steps, rollouts are up to 2 steps old; the run is deterministic.

    The run is shorter than the quickstart; docs/modes.md has the results at full length.
    """
    pytest.importorskip("sqlalchemy")
    monkeypatch.syspath_prepend(QUICKSTART)
    monkeypatch.setenv("QUICKSTART", str(tmp_path))
    importlib.import_module("quickstart").prepare(tmp_path, seed=1)
    rows, *_ = distributed.run(tmp_path, "stale", 120, STYLE)
    measured = [row["eval/held-out/reward"] for row in rows if "eval/held-out/reward" in row]
    staleness = [row["staleness/max"] for row in rows if "staleness/max" in row]
    assert measured[0] < 0.5
    assert measured[-1] >= 0.9
    assert max(staleness) == 2 and sum(steps > 0 for steps in staleness) > 110
