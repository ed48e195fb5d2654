"""The run files on demonstrations and pairs in examples/algorithms run, and sft and dpo also run on conversations."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

import strop
from tests.datasets import data_folder

from .conftest import write_rows
from .results import rows_of, trained_rows

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "algorithms"
SMALL = (
    "trainer.duration=2 steps",
    "trainer.tasks_per_step=8",
    "data.eval.0.limit_tasks=8",
    "evaluate.every=1 steps",
)


@pytest.fixture(scope="module")
def quickstart(tiny, tmp_path_factory) -> Path:
    """A small version of the files that the quickstart writes."""
    folder = tmp_path_factory.mktemp("quickstart")
    rows = [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a in range(10, 20) for b in range(10, 18)]
    for name in ("train", "test"):
        write_rows(folder / f"{name}.jsonl", rows)
    for name in ("random", "warm-start"):
        (folder / name).symlink_to(tiny / "model")
    subprocess.run(
        [sys.executable, EXAMPLES / "pairs.py"], env=os.environ | {"QUICKSTART": str(folder)}, check=True
    )
    return folder


def rows_of_run(file: Path, tmp_path: Path, *overrides: str) -> list[dict]:
    result = strop.train(strop.load(file, [f"output={tmp_path}", *overrides]))
    assert (result.model / "model.safetensors").is_file()
    assert (result.folder / "report.html").is_file()
    return rows_of(result.folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "overrides", "measured"),
    [
        ("sft", (), "eval/held-out/loss"),
        ("dpo", (), "eval/held-out/pairs/margin"),
        ("tr_dpo", ("algorithm.reference_sync.every_updates=1",), "eval/held-out/pairs/margin"),
        ("simpo", (), "eval/held-out/pairs/margin"),
        ("orpo", (), "eval/held-out/loss"),
        ("kto", (), "eval/held-out/labels/margin"),
        ("bco", (), "eval/held-out/labels/margin"),
        ("reward_model", (), "eval/held-out/pairs/margin"),
        ("mix", ("trainer.tasks_per_update=4", "algorithm.rollouts_per_task=4"), "eval/held-out/reward"),
        ("gkd", ("algorithm.rollouts_per_task=2", "trainer.tasks_per_update=4"), "eval/held-out/reward"),
    ],
)
def test_an_example_runs(quickstart, tmp_path, monkeypatch, name, overrides, measured):
    monkeypatch.setenv("QUICKSTART", str(quickstart))
    monkeypatch.setenv("TEACHER", str(quickstart / "random"))
    rows = rows_of_run(EXAMPLES / f"{name}.yaml", tmp_path, *SMALL, *overrides)
    assert len(rows) == 3
    assert all(math.isfinite(row[measured]) for row in (rows[0], rows[-1]))
    assert all(row["grad_norm"] > 0 for row in rows[1:])


@pytest.mark.parametrize(
    ("algorithm", "file", "columns"),
    [
        ("sft", "sft_with_tools/sft_with_tools.jsonl", {"response": "messages", "tools": "tools"}),
        ("dpo", "human_like/train.jsonl", {"chosen": "chosen", "rejected": "rejected"}),
    ],
)
def test_conversations_are_learned(offline, algorithm, file, columns):
    """The template of the tiny model renders no tools."""
    tools = {
        "data__chat_template": str(ROOT / "examples" / "workflows" / "tools.jinja"),
        "data__max_prompt_tokens": 4096,
    }
    rows = trained_rows(
        offline(
            algorithm,
            data__train={"path": str(data_folder() / file), **columns},
            data__eval=[],
            evaluate={},
            data__max_response_tokens=1024,
            trainer__tasks_per_step=4,
            trainer__duration="6 steps",
            trainer__optimizer__lr=3e-3,
            **(tools if "tools" in columns else {"data__max_prompt_tokens": 1024}),
        )
    )
    assert rows[-1]["loss"] < rows[1]["loss"] - 0.01
