"""Evaluating, answering, exporting and benchmarking with the weights of a run, without training."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import strop
from strop.errors import CheckpointError, ConfigError, ModelError

from .results import checkpoint, rows_of, train

REWARD = "eval/held-out/reward"


@pytest.fixture
def folder(finished):
    return strop.load(finished).run.folder_path


def weights_of(model):
    return AutoModelForCausalLM.from_pretrained(model).state_dict()


def assert_equal(first, second):
    assert all(first[name].equal(second[name]) for name in first)


def test_a_checkpoint_measures_what_the_run_measured_with_these_weights(finished, folder):
    loaded = strop.load(finished)
    again = strop.evaluate(loaded, checkpoint=checkpoint(folder, 4))
    assert again[REWARD] == rows_of(folder)[-1][REWARD]
    assert set(strop.evaluate(loaded)) == set(again)


def test_every_prompt_of_a_file_is_answered(finished, tiny, tmp_path):
    out = tmp_path / "answers" / "out.parquet"
    assert strop.generate(strop.load(finished), tiny / "tasks.jsonl", out) == 100
    rows = pq.read_table(out).to_pylist()
    assert len(rows) == 100
    assert rows[7]["prompt"] == "max 0 7"
    assert rows[7]["answer"] == "7"
    assert [len(row["responses"]) for row in rows] == [4] * 100
    assert all(isinstance(text, str) for row in rows for text in row["responses"])


def test_an_exported_model_has_the_weights_that_were_trained(folder, tmp_path):
    exported = weights_of(strop.export(folder, tmp_path / "exported"))
    assert_equal(exported, weights_of(folder / "model"))
    saved = load_file(checkpoint(folder, 4) / "weights.safetensors")
    assert saved.keys() & exported.keys()
    assert_equal({name: exported[name] for name in saved.keys() & exported.keys()}, saved)


def test_what_is_not_there_is_said(finished, folder, values, tmp_path):
    with pytest.raises(CheckpointError, match="no run folder"):
        strop.export(tmp_path, tmp_path / "out")
    with pytest.raises(CheckpointError, match="no checkpoint of step 99"):
        strop.export(folder, tmp_path / "out", step=99)
    with pytest.raises(CheckpointError, match="no readable manifest"):
        strop.evaluate(strop.load(finished), checkpoint=tmp_path)
    with pytest.raises(ConfigError, match="nothing to evaluate"):
        strop.evaluate(strop.load(values(data__eval=[])))


def test_an_export_deletes_no_other_files(folder, tmp_path):
    (tmp_path / "notes.txt").touch()
    message = "holds other files than those of a model, which an export would delete"
    with pytest.raises(ModelError, match=message):
        strop.export(folder, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_each_checkpoint_has_an_export_where_that_is_asked_for(values):
    saved = {"every": "1 steps", "export": True, "keep": None}
    folder = train(values(checkpoint=saved, trainer__duration="2 steps", data__eval=[], evaluate={})).folder
    first, last = (weights_of(checkpoint(folder, step) / "model") for step in (1, 2))
    assert_equal(last, weights_of(folder / "model"))
    assert not all(first[name].equal(last[name]) for name in first)


def test_a_type_chosen_for_memory_does_not_reach_the_models_of_a_run(values, tmp_path):
    model = values()["model"] | {"compute_dtype": "bfloat16", "lora": {"rank": 4}}
    saved = {"every": "1 steps", "export": True}
    lora = values(model=model, checkpoint=saved, trainer__duration="1 steps", data__eval=[], evaluate={})
    folder = train(lora).folder
    exported = weights_of(strop.export(folder, tmp_path / "exported"))
    for written in (folder / "model", checkpoint(folder, 1) / "model"):
        assert_equal(weights_of(written), exported)
    base = weights_of(Path(model["path"]))
    changes = [float((exported[name] - base[name]).abs().max()) for name in base]
    assert {tensor.dtype for tensor in exported.values()} == {torch.float32}
    assert 0.0 in changes and 0 < max(changes) < 1e-2, "the weights without an adapter are those of the files"
    shorter = weights_of(strop.export(folder, tmp_path / "shorter", dtype="bfloat16"))
    assert {tensor.dtype for tensor in shorter.values()} == {torch.bfloat16}


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_each_checkpoint_gets_the_metrics_of_its_training_step(values):
    run = values()
    run["data"]["eval"][0] |= {"sampling": {}, "limit_tasks": 30}
    train(run)
    folder = train(run, "mode=bench").folder
    in_training = {row["step"]: row[REWARD] for row in lines(folder / "metrics.jsonl") if REWARD in row}
    benched = lines(folder / "bench.jsonl")
    assert [row["checkpoint"] for row in benched] == ["model", "step-000002", "step-000004"]
    assert {row["step"]: row[REWARD] for row in benched} == in_training
    assert len(set(in_training.values())) > 1, "the measurement distinguishes them"
    with (folder / "bench.csv").open(newline="") as file:
        assert [float(row[REWARD]) for row in csv.DictReader(file)] == list(in_training.values())
    page = (folder / "bench.html").read_text()
    assert "step-000004" in page and "data-chart=" in page


def test_named_checkpoints_and_run_folders_in_their_order(finished, values):
    folder = strop.load(finished).run.folder_path
    bench = {"checkpoints": [str(checkpoint(folder, 4)), str(folder)], "initial_model": False}
    benched = train(values(mode="bench", bench=bench)).folder
    assert [row["step"] for row in lines(benched / "bench.jsonl")] == [4, 2, 4]


def test_missing_checkpoints_are_reported_before_any_evaluation(values):
    with pytest.raises(CheckpointError, match=r"nowhere is neither a checkpoint .* nor a run folder"):
        train(values(mode="bench", bench={"checkpoints": ["nowhere"]}))
