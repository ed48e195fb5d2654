"""Explorer and trainer side by side learn the quickstart's task as well as in turns."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from benchmarks import apart

QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart"


@pytest.mark.learning
@pytest.mark.timeout(900)
def test_from_answers_of_weights_two_steps_old_it_comes_to_its_accuracy(tmp_path, monkeypatch):
    """With offset 1 and new weights every 2 steps what is learned from is up to 2 steps old, and the run is
    the same every time. It is shorter than the quickstart; that one's full length is in docs/modes.md."""
    pytest.importorskip("sqlalchemy")
    monkeypatch.syspath_prepend(QUICKSTART)
    monkeypatch.setenv("QUICKSTART", str(tmp_path))
    importlib.import_module("quickstart").prepare(tmp_path, seed=1)
    rows, *_ = apart.run(tmp_path, "stale", 120, apart.STYLES["two, `fixed`, every 2, ahead 1"])
    measured = [row["eval/held-out/reward"] for row in rows if "eval/held-out/reward" in row]
    ages = [row["staleness/max"] for row in rows if "staleness/max" in row]
    assert measured[0] < 0.5
    assert measured[-1] >= 0.9
    assert max(ages) == 2 and sum(age > 0 for age in ages) > 110
