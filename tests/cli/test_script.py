"""Runs of a script of TRL from the command line: resuming, more epochs, changed rows, and evaluation."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import datasets
import pytest

from .conftest import Cli

SCRIPT = """
from datasets import load_dataset
from trl import SFTConfig, SFTTrainer

data = load_dataset("json", data_files="train.jsonl", split="train").select(range({rows}))
args = SFTConfig("out", num_train_epochs={epochs}, per_device_train_batch_size=2, packing={packing}, max_length=64,
    learning_rate=1e-2, bf16=False, save_strategy="epoch", report_to="none")
trainer = SFTTrainer("m", args, train_dataset=data, eval_dataset=data.select([0]))
trainer.train()
print("updates", trainer.state.global_step, "eval_loss" in trainer.evaluate())
"""
Train = Callable[..., str]


@pytest.fixture
def train(cli: Cli, tiny_model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Train:
    """A function that trains with the script, in which it sets values; returns what is printed, on one line."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    shutil.copytree(tiny_model, "m")
    Path("train.jsonl").write_text("".join(json.dumps({"text": "1+1 is 2 " * n}) + "\n" for n in range(1, 9)))

    def run(*words: str, rows: int = 4, epochs: int = 1, packing: bool = False) -> str:
        Path("train.py").write_text(SCRIPT.format(rows=rows, epochs=epochs, packing=packing))
        return " ".join(cli("train", "train.py", *words).output.split())

    return run


def steps() -> list[int]:
    lines = Path("out/metrics.jsonl").read_text().splitlines()
    return [row["step"] for row in map(json.loads, lines) if "loss" in row]


@pytest.mark.slow
def test_a_script_resumes_and_continues_with_changes(train: Train) -> None:
    assert "updates 2 True" in train() and steps() == [1, 2]
    again = train()
    assert "All 2 steps are already done" in again and "updates 2 True" in again
    assert "trainer.duration was 1 epoch, is 2 epochs" in train(epochs=2)
    assert "updates 4 True" in train("--change", "trainer.duration=2 epochs") and steps() == [1, 2, 3, 4]
    refused = train("--change", "trainer.duration=2 epochs", rows=6)
    assert "data.train was 4 rows" in refused and ", is 6 rows" in refused
    train("--change", "data.train", "--change", "trainer.duration=3 epochs", epochs=2, rows=6)
    assert steps() == [*range(1, 10)]


@pytest.mark.slow
def test_a_packed_run_has_updates_of_sequences(train: Train) -> None:
    """Alone, four texts are two updates; two sequences are one."""
    output = train(packing=True)
    assert "train: 4 rows in 2 sequences" in output and "updates 1 True" in output
