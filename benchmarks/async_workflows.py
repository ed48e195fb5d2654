"""Workflows and advantages of the runs of `async_validation.py`, which sleep where a larger machine would compute."""

from __future__ import annotations

import asyncio
import math
import os
import random
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from strop.algorithms.algorithm import RolloutBatch

UPDATE_SECONDS = "STROP_BENCHMARK_UPDATE_SECONDS"
"""Environment variable with the seconds that `slow_advantages` sleeps in each step."""
SEED = 1
_durations = random.Random(SEED)
"""Draws in the order in which rollouts start, so that a simulation with the same seed has the same durations."""


async def waiting(task: Any, chat: Any, median: float, sigma: float, maximum: float) -> float:
    """Reply with some tokens, sleep, and return a random reward: a workflow of Strop."""
    seconds = min(maximum, median * math.exp(sigma * _durations.gauss(0.0, 1.0)))
    await chat.reply(max_tokens=4)
    await asyncio.sleep(seconds)
    return random.random()


def slow_advantages(batch: RolloutBatch) -> torch.Tensor:
    """Sleep, and return the rewards minus their mean: an advantage function of Strop."""
    time.sleep(float(os.environ[UPDATE_SECONDS]))
    return batch.rewards - batch.rewards.mean()
