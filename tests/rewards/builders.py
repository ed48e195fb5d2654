"""Groups of answers, and the real data they are about."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from strop.types import Group, Rollout, Sampling, Task, Turn

DATA = Path(__file__).parents[2] / ".." / "shared" / "data"


def group(texts: list[str], answer: Any = None, *, name: str = "t0", source: str = "", **extra: Any) -> Group:
    """One task and an answer to it for each text; further arguments are columns of its row."""
    task = Task(
        id=name,
        messages=({"role": "user", "content": f"question {name}"},),
        prompt_ids=np.arange(3, dtype=np.int32),
        answer=answer,
        source=source,
        extra=extra,
    )
    rollouts = tuple(_rollout(name, index, text) for index, text in enumerate(texts))
    return Group(f"g-{name}", task, rollouts)


def _rollout(task: str, index: int, text: str) -> Rollout:
    ids = np.arange(len(text), dtype=np.int32)
    zeros = np.zeros(len(text), dtype=np.float32)
    turn = Turn(np.arange(3, dtype=np.int32), ids, zeros, zeros, "stop", 0)
    return Rollout(f"{task}-{index}", task, f"g-{task}", index, (turn,), text, "ok", Sampling())


def rows(*path: str) -> list[dict[str, Any]]:
    """All rows of a file of the shared data; skips the test where that is not there."""
    file = DATA.joinpath(*path)
    if not file.is_file():
        pytest.skip(f"no {'/'.join(path)} here")
    return [json.loads(line) for line in file.read_text().splitlines()]
