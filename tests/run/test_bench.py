"""Mode bench: a checkpoint gets the metrics that the run recorded when it wrote it."""

from __future__ import annotations

import csv
import json

import pytest

import strop
from strop.errors import CheckpointError, ConfigError

REWARD = "eval/held-out/reward"


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def trained(values):
    run = values(checkpoint__every="2 steps", data__eval=None)
    run["data"]["eval"] = [{"name": "held-out", "path": run["data"]["train"]["path"], "sampling": {}}]
    strop.train(strop.load(run))
    return run


def test_each_checkpoint_gets_the_metrics_of_its_training_step(trained):
    loaded = strop.load(trained, ["mode=bench"])
    result = strop.train(loaded)
    in_training = {row["step"]: row[REWARD] for row in rows(result.folder / "metrics.jsonl") if REWARD in row}
    benched = rows(result.folder / "bench.jsonl")
    assert [row["checkpoint"] for row in benched] == ["model", "step-000002", "step-000004"]
    assert {row["step"]: row[REWARD] for row in benched} == in_training
    assert len(set(in_training.values())) > 1, "the measurement distinguishes them"
    with (result.folder / "bench.csv").open(newline="") as file:
        assert [float(row[REWARD]) for row in csv.DictReader(file)] == list(in_training.values())
    page = (result.folder / "bench.html").read_text()
    assert "step-000004" in page and "<svg" in page


def test_named_checkpoints_and_run_folders_in_their_order(trained):
    folder = strop.load(trained).run.folder_path
    named = [str(folder / "checkpoints" / "step-000004"), str(folder)]
    bench = {"checkpoints": named, "initial_model": False}
    result = strop.train(strop.load(trained | {"name": "other", "mode": "bench", "bench": bench}))
    steps = [row["step"] for row in rows(result.folder / "bench.jsonl")]
    assert steps == [4, 2, 4]


def test_missing_checkpoints_are_reported_before_any_evaluation(trained, values):
    with pytest.raises(CheckpointError, match=r"nowhere is neither a checkpoint .* nor a run folder"):
        strop.train(strop.load(trained | {"mode": "bench", "bench": {"checkpoints": ["nowhere"]}}))
    with pytest.raises(ConfigError, match=r"mode: bench evaluates the eval tasksets, and there is none"):
        strop.load(values(mode="bench", data__eval=[]))
    with pytest.raises(ConfigError, match=r"bench has no effect in mode both"):
        strop.load(values(bench={"initial_model": False}))
