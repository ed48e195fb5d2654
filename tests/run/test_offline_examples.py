"""The run files of sft, dpo, mix and gkd in examples/algorithms run, and sft and dpo also run on conversations."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

import strop
from tests.datasets import data_folder

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "algorithms"
SMALL = (
    "trainer.duration=4 steps",
    "trainer.tasks_per_step=8",
    "data.eval.0.limit_tasks=8",
    "evaluate.every=2 steps",
)


@pytest.fixture(scope="module")
def quickstart(tiny, tmp_path_factory) -> Path:
    """A small version of the files that the quickstart writes."""
    folder = tmp_path_factory.mktemp("quickstart")
    rows = [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a in range(10, 20) for b in range(10, 18)]
    for name in ("train", "test"):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name in ("random", "warm-start"):
        (folder / name).symlink_to(tiny / "model")
    subprocess.run(
        [sys.executable, EXAMPLES / "pairs.py"], env=os.environ | {"QUICKSTART": str(folder)}, check=True
    )
    return folder


def train(file: Path, tmp_path: Path, *overrides: str) -> list[dict]:
    result = strop.train(strop.load(file, [f"output={tmp_path}", *overrides]))
    assert (result.model / "model.safetensors").is_file()
    assert (result.folder / "report.html").is_file()
    return [json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "overrides", "measured"),
    [
        ("sft", (), "eval/held-out/loss"),
        ("dpo", (), "eval/held-out/dpo/margin"),
        ("mix", ("trainer.tasks_per_update=4", "algorithm.rollouts_per_task=4"), "eval/held-out/reward"),
        ("gkd", ("algorithm.rollouts_per_task=2", "trainer.tasks_per_update=4"), "eval/held-out/reward"),
    ],
)
def test_an_example_runs(quickstart, tmp_path, monkeypatch, name, overrides, measured):
    monkeypatch.setenv("QUICKSTART", str(quickstart))
    monkeypatch.setenv("TEACHER", str(quickstart / "random"))
    rows = train(EXAMPLES / f"{name}.yaml", tmp_path, *SMALL, *overrides)
    assert len(rows) == 5
    assert all(math.isfinite(row[measured]) for row in (rows[0], rows[-1]))
    assert all(row["grad_norm"] > 0 for row in rows[1:])


def run_file(tmp_path: Path, tiny: Path, train: str, algorithm: str) -> Path:
    file = tmp_path / "run.yaml"
    file.write_text(
        f"model: {{path: {tiny / 'model'}}}\n"
        f"data: {{train: {train}, max_prompt_tokens: 1024, max_response_tokens: 1024}}\n"
        f"algorithm: {algorithm}\n"
        "trainer: {duration: 6 steps, tasks_per_step: 4, optimizer: {lr: 3e-3}}\n"
    )
    return file


def test_sft_on_conversations_with_tools(tiny, tmp_path):
    source = data_folder() / "sft_with_tools" / "sft_with_tools.jsonl"
    columns = f"{{path: {source}, response: messages, tools: tools}}"
    rows = train(run_file(tmp_path, tiny, columns, "sft"), tmp_path)
    assert rows[-1]["sft_loss"] < rows[1]["sft_loss"] - 0.5


def test_dpo_on_preferences_of_chats(tiny, tmp_path):
    source = data_folder() / "human_like" / "train.jsonl"
    columns = f"{{path: {source}, chosen: chosen, rejected: rejected}}"
    rows = train(run_file(tmp_path, tiny, columns, "dpo"), tmp_path)
    assert rows[1]["dpo_loss"] == pytest.approx(math.log(2), abs=1e-3)
    assert rows[-1]["dpo/margin"] > 0.1
