"""A random model learns from a teacher alone, on its own rollouts: the divergence falls, held-out accuracy rises."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

import strop
from strop.models.tiny import make_model


def write_tasks(folder: Path) -> None:
    """The larger of two digits: 80 tasks to train on, 20 held out."""
    pairs = [(a, b) for a in range(10) for b in range(10)]
    random.Random(0).shuffle(pairs)
    for name, chosen in (("train", pairs[20:]), ("test", pairs[:20])):
        rows = [{"prompt": f"max {a} {b} =", "answer": str(max(a, b))} for a, b in chosen]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def train(folder: Path, name: str, **sections: Any) -> tuple[list[dict[str, float]], Path]:
    run = {
        "name": name,
        "output": str(folder / "runs"),
        "model": {"path": str(folder / "random")},
        "record": {"monitors": [], "report": False},
        **sections,
    }
    result = strop.train(strop.load(run))
    assert result.model is not None
    rows = [json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()]
    return rows, result.model


@pytest.mark.learning
@pytest.mark.timeout(600)
def test_a_student_approaches_its_teacher(tmp_path: Path) -> None:
    write_tasks(tmp_path)
    make_model(tmp_path / "random", ["max 1 2 = 2"], vocab_size=300, hidden_size=64, layers=2)
    tasks = {"path": str(tmp_path / "train.jsonl")}
    lengths = {"max_prompt_tokens": 24, "max_response_tokens": 3}
    held_out = [{"name": "held-out", "path": str(tmp_path / "test.jsonl")}]
    trainer = {"tasks_per_step": 40, "optimizer": {"type": "adamw", "lr": 3e-3}}
    _, teacher = train(
        tmp_path,
        "teacher",
        algorithm="sft",
        data={"train": tasks | {"response": "answer"}, "eval": [], **lengths},
        trainer=trainer | {"duration": "150 steps"},
    )
    distillation = {
        "teachers": [{"path": str(teacher), "dtype": "float32"}],
        "loss": {"divergence": "forward_kl"},
    }
    rows, _ = train(
        tmp_path,
        "student",
        reward="exact",
        algorithm={"type": "distillation", "rollouts_per_task": 2, "distillation": distillation},
        data={"train": tasks, "eval": held_out, **lengths},
        trainer=trainer | {"duration": "100 steps"},
    )
    divergence = [row["distillation_loss/divergence"] for row in rows[1:]]
    assert divergence[-1] < divergence[0] / 4
    accuracy = [row["eval/held-out/reward"] for row in rows if "eval/held-out/reward" in row]
    assert accuracy[0] < 0.2
    assert accuracy[-1] > accuracy[0] + 0.3
