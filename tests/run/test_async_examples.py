"""The run files in examples/async run, in small; the pair on a PostgreSQL server of the test's own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import strop
from tests.buffer.postgres import running_server

from .groups_by_id import assert_as_often_as_allowed, rows
from .test_distributed import rows_of, run_both

pytestmark = pytest.mark.slow
EXAMPLES = Path(__file__).parents[2] / "examples" / "async"
SMALL = (
    "trainer.duration=4 steps",
    "trainer.tasks_per_step=8",
    "trainer.tasks_per_update=4",
    "algorithm.rollouts_per_task=4",
    "data.eval.0.limit_tasks=8",
    "evaluate.every=2 steps",
    "checkpoint.every=2 steps",
)


@pytest.fixture
def quickstart(tiny, tmp_path, monkeypatch) -> Path:
    """A small version of the files that the quickstart writes."""
    rows = [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a in range(10, 20) for b in range(10, 18)]
    for name in ("train", "test"):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name in ("random", "warm-start"):
        (tmp_path / name).symlink_to(tiny / "model")
    monkeypatch.setenv("QUICKSTART", str(tmp_path))
    return tmp_path


def load(name: str, folder: Path, *overrides: str) -> strop.Loaded:
    return strop.load(EXAMPLES / f"{name}.yaml", [f"output={folder}", *overrides])


@pytest.mark.parametrize(("name", "bound"), [("ahead", 1), ("bounded", 2)])
def test_two_processes(quickstart, name, bound):
    folder = run_both(load(name, quickstart, *SMALL))
    rows = rows_of(folder)
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4]
    assert max(row["staleness/max"] for row in rows[1:]) <= bound
    assert "importance/mean" in rows[-1] and "eval/held-out/reward" in rows[-1]


def test_a_warm_up_and_then_two_processes(quickstart):
    folder = run_both(load("warm_up", quickstart, *SMALL, "trainer.batch_selection.steps=2 steps"))
    rows = rows_of(folder)
    assert ["sft_loss" in row for row in rows] == [False, True, True, False, False]
    assert ["reward/mean" in row for row in rows] == [False, False, False, True, True]


@pytest.mark.nightly
def test_groups_used_again(quickstart):
    """With processes, including the priority queue. Slow rewards make the trainer the faster one."""
    slowly = f"reward={Path(__file__).parent / 'rewards.py'}:slowly"
    fast = ["buffer.reuse_cooldown_seconds=0.1", "trainer.duration=8 steps", slowly]
    folder = strop.train(load("priority", quickstart, *SMALL, *fast)).folder
    steps = rows(folder)
    assert len(steps) >= 4 and all(row["staleness/max"] <= 8 for row in steps)
    assert steps[0]["groups/reused"] == 0 < sum(row["groups/reused"] for row in steps)
    assert_as_often_as_allowed(folder, folder / "groups.db")


def test_a_pair_on_postgresql_with_a_shared_folder(quickstart, monkeypatch):
    pytest.importorskip("psycopg")
    with running_server() as server:
        monkeypatch.setenv("STROP_DATABASE", server.url)
        monkeypatch.setenv("STROP_SYNC", str(quickstart / "shared"))
        halves = {
            mode: load("pair", quickstart / mode, f"mode={mode}", *SMALL) for mode in ("explore", "train")
        }
        run_both(halves["train"], explorer=halves["explore"])
        rows = rows_of(halves["train"].run.folder_path)
        assert [row["step"] for row in rows] == [0, 1, 2, 3, 4]
        assert max(row["staleness/max"] for row in rows[1:]) <= 2
        explored = halves["explore"].run.folder_path / "explorer" / "metrics.jsonl"
        assert explored.read_text().count("reward/mean") == 4


def test_stages_and_a_bench_of_their_checkpoints(quickstart):
    small = [override for override in SMALL if not override.startswith(("trainer.duration", "algorithm"))]
    stages = [f"stages.{number}.trainer.duration=2 steps" for number in (0, 1)]
    updates = ["stages.0.trainer.tasks_per_update=8", "algorithm.rollouts_per_task=4"]
    result = strop.train(load("stages", quickstart, *small, *stages, *updates, "stages.1.checkpoint=null"))
    assert result.folder.name == "stages-rl"
    (quickstart / "sums").symlink_to(result.folder)
    benched = strop.train(load("bench", quickstart, "data.eval.0.limit_tasks=8"))
    assert (benched.folder / "bench.html").is_file()
    assert len((benched.folder / "bench.jsonl").read_text().splitlines()) == 2
