"""Evaluating, answering and exporting with a run's weights, without training."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import strop
from strop.errors import CheckpointError, ConfigError, ModelError


@pytest.fixture
def trained(values):
    loaded = strop.load(values())
    return loaded, strop.train(loaded)


def test_a_checkpoint_measures_what_the_run_measured_with_these_weights(trained):
    loaded, result = trained
    newest = max((result.folder / "checkpoints").iterdir())
    again = strop.evaluate(loaded, checkpoint=newest)
    assert again["eval/held-out/reward"] == result.metrics["eval/held-out/reward"]
    first = strop.evaluate(loaded)
    assert set(first) == set(again)


def test_every_prompt_of_a_file_is_answered(trained, tiny, tmp_path):
    loaded, _ = trained
    out = tmp_path / "answers" / "out.parquet"
    assert strop.generate(loaded, tiny / "tasks.jsonl", out) == 100
    rows = pq.read_table(out).to_pylist()
    assert len(rows) == 100
    assert rows[7]["prompt"] == [{"role": "user", "content": "max 0 7"}]
    assert rows[7]["answer"] == "7"
    assert [len(row["responses"]) for row in rows] == [4] * 100
    assert all(isinstance(text, str) for row in rows for text in row["responses"])


def test_an_exported_model_has_the_weights_that_were_trained(trained, tmp_path):
    _, result = trained
    folder = strop.export(result.folder, tmp_path / "exported")
    newest = max((result.folder / "checkpoints").iterdir())
    saved = load_file(newest / "weights.safetensors")
    model = AutoModelForCausalLM.from_pretrained(folder)
    final = AutoModelForCausalLM.from_pretrained(result.model)
    for name, weight in model.state_dict().items():
        torch.testing.assert_close(weight, final.state_dict()[name], rtol=0, atol=0)
        if name in saved:
            torch.testing.assert_close(weight, saved[name], rtol=0, atol=0)


def test_what_is_not_there_is_said(trained, values, tmp_path):
    loaded, result = trained
    with pytest.raises(CheckpointError, match="no run folder"):
        strop.export(tmp_path, tmp_path / "out")
    with pytest.raises(CheckpointError, match="no checkpoint of step 99"):
        strop.export(result.folder, tmp_path / "out", step=99)
    with pytest.raises(CheckpointError, match="no readable manifest"):
        strop.evaluate(loaded, checkpoint=tmp_path)
    with pytest.raises(ConfigError, match="nothing to evaluate"):
        strop.evaluate(strop.load(values(data__eval=[])))


def test_an_export_deletes_no_other_files(trained, tmp_path):
    _, result = trained
    other = tmp_path / "papers"
    other.mkdir()
    (other / "notes.txt").touch()
    with pytest.raises(
        ModelError, match="holds other files than those of a model, which an export would delete"
    ):
        strop.export(result.folder, other)
    assert [path.name for path in other.iterdir()] == ["notes.txt"]


def test_each_checkpoint_has_an_export_where_that_is_asked_for(values):
    run = values(checkpoint={"every": "2 steps", "export": True})
    result = strop.train(strop.load(run))
    newest = max((result.folder / "checkpoints").iterdir())
    exported = AutoModelForCausalLM.from_pretrained(newest / "model").state_dict()
    for name, weight in AutoModelForCausalLM.from_pretrained(result.model).state_dict().items():
        torch.testing.assert_close(exported[name], weight, rtol=0, atol=0)
