"""Groups of answers, and the real data they are about."""

from __future__ import annotations

from typing import Any

import numpy as np

from strop.types import Rollout, RolloutGroup, SamplingParams, Task, Turn


def group(
    texts: list[str], answer: Any = None, *, name: str = "t0", source: str = "", **extra: Any
) -> RolloutGroup:
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
    return RolloutGroup(f"g-{name}", task, rollouts)


def _rollout(task: str, index: int, text: str) -> Rollout:
    tokens = min(len(text), 1000)
    ids = np.arange(tokens, dtype=np.int32)
    zeros = np.zeros(tokens, dtype=np.float32)
    turn = Turn(np.arange(3, dtype=np.int32), ids, zeros, zeros, "stop", 0)
    return Rollout(f"{task}-{index}", task, f"g-{task}", index, (turn,), text, "ok", SamplingParams())
