"""Mixtures of tasksets in whole runs: GRPO and SFT resume exactly."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import strop
from tests.run.test_task_order import tasks_of

Values = Callable[..., dict[str, Any]]


def digest(folder: Path) -> str:
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


@pytest.fixture
def minimum(tmp_path: Path) -> Path:
    """Which of two digits is the smaller? In columns with other names."""
    rows = [{"question": f"min {a} {b}", "smaller": str(min(a, b))} for a in range(4) for b in range(4)]
    (tmp_path / "minimum.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "minimum.jsonl"


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["grpo", "sft"])
def test_a_resumed_mixture_draws_and_learns_the_same(
    values: Values, tiny: Path, minimum: Path, algorithm: str
) -> None:
    first = {"path": str(tiny / "tasks.jsonl"), "weight": 1}
    second = {"path": str(minimum), "prompt": "question", "answer": "smaller", "weight": 3}
    if algorithm == "sft":
        first |= {"response": "answer"}
        second |= {"response": "smaller", "answer": None}
    else:
        first["few_shot"] = {"path": str(tiny / "tasks.jsonl"), "count": 1}
    changes: dict[str, Any] = {
        "data__train": [first, second],
        "data__eval": [],
        "evaluate": {},
        "record__rollouts_every": "1 steps",
    }
    if algorithm == "sft":
        changes |= {"algorithm": {"type": "sft"}, "reward": {}, "record": {"report": False}}
    whole = strop.train(strop.load(values(name="whole", **changes)))
    checkpoint = whole.folder / "checkpoints" / "step-000002"
    again = strop.train(strop.load(values(name="again", resume=str(checkpoint), **changes)))
    assert digest(again.model) == digest(whole.model)
    if algorithm == "grpo":
        expected = tasks_of(whole.folder)
        assert tasks_of(again.folder) == {step: expected[step] for step in (3, 4)}
        drawn = [task.partition(":")[0] for step in expected.values() for task in step]
        assert {"train", "mixture.0"} == set(drawn)
        assert drawn.count("mixture.0") > 2 * drawn.count("train")
