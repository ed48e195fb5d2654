"""A tiny model and tasks for whole runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from strop.models.tiny import make_model


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `model/` and `tasks.jsonl`: which of two digits is the larger?"""
    folder = tmp_path_factory.mktemp("tiny")
    make_model(folder / "model", ["max 1 2"], vocab_size=300, hidden_size=32, layers=2, heads=4, kv_heads=2)
    pairs = [(a, b) for a in range(10) for b in range(10)]
    rows = [{"prompt": f"max {a} {b}", "answer": str(max(a, b))} for a, b in pairs]
    (folder / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture
def values(tiny: Path, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """The values of a small run; dotted keyword arguments (`a__b=1`) change them."""

    def make(**changes: Any) -> dict[str, Any]:
        run: dict[str, Any] = {
            "name": "small",
            "output": str(tmp_path / "runs"),
            "model": {"path": str(tiny / "model")},
            "data": {
                "train": {"path": str(tiny / "tasks.jsonl")},
                "eval": [{"name": "held-out", "path": str(tiny / "tasks.jsonl"), "limit_tasks": 20}],
                "max_prompt_tokens": 32,
                "max_response_tokens": 8,
            },
            "reward": f"{Path(__file__).parent / 'rewards.py'}:digit_share",
            "algorithm": {"type": "grpo", "rollouts_per_task": 4},
            "trainer": {
                "duration": "4 steps",
                "tasks_per_step": 8,
                "tasks_per_update": 4,
                "optimizer": {"type": "adamw", "lr": 1e-3},
            },
            "checkpoint": {"every": "2 steps"},
            "evaluate": {"every": "2 steps"},
            "record": {"rollouts_every": "2 steps", "monitors": ["console"], "report": False},
        }
        for path, value in changes.items():
            *parents, last = path.split("__")
            section = run
            for parent in parents:
                section = section.setdefault(parent, {})
            section[last] = value
        return run

    return make
