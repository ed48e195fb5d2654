"""Orders of tasks in whole runs: an exact resume of the curriculum, its metrics, and refused combinations."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import strop
from strop.errors import ConfigError
from tests.files import digest

Values = Callable[..., dict[str, Any]]
CURRICULUM = {"type": "curriculum", "target": [0.1, 0.9], "success_reward": 0.2}


def tasks_of(folder: Path) -> dict[int, list[str]]:
    files = sorted((folder / "rollouts").glob("step-*.parquet"))
    tables = {int(file.stem.removeprefix("step-")): pq.read_table(file).to_pylist() for file in files}
    return {step: [row["task_id"] for row in rows] for step, rows in tables.items()}


def rows_of(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def curriculum_values(values: Values, **changes: Any) -> dict[str, Any]:
    return values(data__order=CURRICULUM, record__rollouts_every="1 steps", evaluate={}, **changes)


@pytest.mark.slow
def test_a_resumed_curriculum_draws_and_learns_the_same(values: Values) -> None:
    whole = strop.train(strop.load(curriculum_values(values, name="whole")))
    checkpoint = whole.folder / "checkpoints" / "step-000002"
    assert len(json.loads((checkpoint / "state.json").read_text())["task_order"]["rates"]) >= 8
    again = strop.train(strop.load(curriculum_values(values, name="again", resume=str(checkpoint))))
    expected, found = tasks_of(whole.folder), tasks_of(again.folder)
    assert sorted(found) == [3, 4]
    assert all(found[step] == expected[step] for step in found)
    weights = "model.safetensors"
    assert digest(again.model / weights) == digest(whole.model / weights)
    last = rows_of(whole.folder)[-1]
    assert last["curriculum/explored_fraction"] < 1, "some tasks were drawn by priority"
    assert 0 < last["curriculum/seen_fraction"] <= 24 / 100


@pytest.mark.slow
def test_a_resumed_order_by_difficulty_draws_and_learns_the_same(values: Values, tmp_path: Path) -> None:
    def run(**changes: Any) -> dict[str, Any]:
        found = curriculum_values(values, **changes)
        rows = Path(found["data"]["train"]["path"]).read_text().splitlines()
        rated = [json.loads(row) | {"weak": 0.1, "strong": 0.2 + i % 8 / 10} for i, row in enumerate(rows)]
        path = tmp_path / "rated.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rated))
        found["data"]["train"]["path"] = str(path)
        found["data"]["order"] = {"type": "difficulty", "columns": ["weak", "strong"], "success_reward": 0.2}
        return found

    whole = strop.train(strop.load(run(name="whole")))
    checkpoint = whole.folder / "checkpoints" / "step-000002"
    saved = json.loads((checkpoint / "state.json").read_text())["task_order"]
    assert len(saved["alphas"]) == 100 and max(saved["alphas"]) > 1
    again = strop.train(strop.load(run(name="again", resume=str(checkpoint))))
    expected, found = tasks_of(whole.folder), tasks_of(again.folder)
    assert found == {step: expected[step] for step in (3, 4)}
    assert digest(again.model / "model.safetensors") == digest(whole.model / "model.safetensors")
    last = rows_of(whole.folder)[-1]
    assert last["difficulty/observed_rate"] >= 0
    assert last["difficulty/drawn_rate"] != last["difficulty/rate"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"data__order": {"type": "curriculum", "target": [0.8, 0.2]}},
            "write two success rates from 0 to 1",
        ),
        ({"data__order": {"type": "column"}}, "data.order.*column"),
        ({"data__order": {"type": "difficulty", "columns": ["a", "a"]}}, "columns names a column twice"),
        (
            {
                "data__order": {"type": "difficulty", "columns": ["a", "b"]},
                "data__incomplete_batch": "keep",
            },
            "data.order difficulty has no incomplete steps",
        ),
        (
            {
                "data__order": "curriculum",
                "synchronizer": {"backend": "checkpoint", "style": {"type": "latest"}},
                "buffer": {"type": "sql"},
            },
            "under synchronizer.style latest the next tasks are drawn before",
        ),
        (
            {"data__order": "curriculum", "data__incomplete_batch": "keep"},
            "data.order curriculum has no incomplete steps",
        ),
    ],
)
def test_orders_that_a_run_cannot_have_are_refused(
    values: Values, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        strop.load(values(**changes))
