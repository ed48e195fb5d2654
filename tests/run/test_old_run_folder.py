"""A run folder that Strop 0.1 wrote before keys, metrics and state fields were renamed: it resumes and reads.

`old_run/` has the run file, and the folder of its first two steps; `expected.jsonl` has the rows that the
same version wrote for steps 3 and 4.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

import strop
from strop.config.aliases import current_metric
from strop.runs.reader import read_run

OLD = Path(__file__).parent / "old_run"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the old run, as the current directory."""
    copy = tmp_path / "old_run"
    shutil.copytree(OLD, copy)
    monkeypatch.chdir(copy)
    return copy


def measured(row: Mapping[str, float | None]) -> dict[str, float | None]:
    """The metrics of a row that do not depend on the clock or on memory."""
    return {
        current_metric(name): value
        for name, value in row.items()
        if not name.startswith(("time/", "memory/", "engine/", "tokens_per_second"))
    }


def test_it_resumes_where_the_old_version_would_have_gone_on(folder: Path) -> None:
    with pytest.warns(FutureWarning, match=r"settings.yaml:\d+: trainer.passes is deprecated"):
        # The old version computed every rollout, and its metrics were means over all of them.
        changes = ["trainer.duration=4 steps", "trainer.skip_zero_advantages=false"]
        loaded = strop.load(Path("settings.yaml"), changes)
    result = strop.train(loaded)
    assert result.steps == 4
    rows = [measured(row) for row in read_run(folder / "runs" / "strop" / "old").rows]
    wanted = [measured(json.loads(line)) for line in (folder / "expected.jsonl").read_text().splitlines()]
    assert len(rows) == 5
    for row, expected in zip(rows[3:], wanted, strict=True):
        assert row.keys() >= expected.keys()
        assert {name: row[name] for name in expected} == pytest.approx(expected, rel=1e-4, abs=1e-6)
    state = json.loads((result.folder / "checkpoints" / "step-000004" / "state.json").read_text())
    assert state["best"]["metric"] == "eval/held-out/truncated_fraction"
    assert (state["best"]["step"], result.model_step) == (1, 1), "the best checkpoint of the old run is known"


def test_its_metrics_have_current_names(folder: Path) -> None:
    data = read_run(folder / "runs" / "strop" / "old")
    names = set(data.names())
    assert {"approx_kl", "groups/zero_variance_fraction", "rollouts/truncated_fraction"} <= names
    assert names == {current_metric(name) for name in names}
    assert data.series("eval/held-out/timeout_fraction") == ([0, 1, 2], [0.0, 0.0, 0.0])
    assert [session["outcome"] for session in data.sessions] == ["finished"]
