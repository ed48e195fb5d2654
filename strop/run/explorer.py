"""The explorer: tasks become groups of scored rollouts."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass

from strop.errors import RolloutError
from strop.protocols import Workflow
from strop.run.rewards import Rewards
from strop.run.seeds import derive_seed
from strop.run.stopping import StopSignal
from strop.types import Group, Rollout, Sampling, Task

_POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Explored:
    """What one exploration gave, and what it took."""

    groups: list[Group]
    sample_seconds: float
    reward_seconds: float


class Explorer:
    """Runs a workflow for every rollout of every task side by side, then scores them.

    Requests reach the engine in the order (task, index), each with a seed of its own, so that
    timing never changes a result.
    """

    def __init__(self, workflow: Workflow, scorer: Rewards, stop: StopSignal, *, seed: int) -> None:
        self._workflow = workflow
        self._scorer = scorer
        self._stop = stop
        self._seed = seed

    def run(
        self,
        tasks: Sequence[Task],
        rollouts_per_task: int,
        sampling: Sampling,
        *,
        purpose: str,
        step: int,
        first: int = 0,
    ) -> Explored:
        """Sample and score; groups are numbered from `first`, so that a step may be sampled in parts.

        Raises `Interrupted` when a stop was asked for, and drops what was drawn.
        """
        started = time.perf_counter()
        groups = self.sample(tasks, rollouts_per_task, sampling, purpose=purpose, step=step, first=first)
        sampled = time.perf_counter()
        groups = self._scorer.score(groups)
        self._stop.check()
        return Explored(groups, sampled - started, time.perf_counter() - sampled)

    def sample(
        self,
        tasks: Sequence[Task],
        rollouts_per_task: int,
        sampling: Sampling,
        *,
        purpose: str,
        step: int,
        first: int = 0,
    ) -> list[Group]:
        """Unscored rollouts of every task. Raises `Interrupted` like `run`."""
        numbers = range(first, first + len(tasks))
        return asyncio.run(self._sample(tasks, rollouts_per_task, sampling, purpose, step, numbers))

    async def _sample(
        self,
        tasks: Sequence[Task],
        rollouts_per_task: int,
        sampling: Sampling,
        purpose: str,
        step: int,
        numbers: range,
    ) -> list[Group]:
        names = [f"{purpose}-{step:06d}-{number:05d}" for number in numbers]
        rollouts = asyncio.gather(
            *(
                self._one(task, name, index, sampling, derive_seed(self._seed, purpose, step, number, index))
                for number, task, name in zip(numbers, tasks, names, strict=True)
                for index in range(rollouts_per_task)
            )
        )
        while not rollouts.done():
            await asyncio.wait([rollouts], timeout=_POLL_SECONDS)
            if self._stop.received is not None:
                rollouts.cancel()
                self._stop.check()
        done = rollouts.result()
        return [
            Group(name, task, tuple(done[i * rollouts_per_task : (i + 1) * rollouts_per_task]))
            for i, (task, name) in enumerate(zip(tasks, names, strict=True))
        ]

    async def _one(self, task: Task, group: str, index: int, sampling: Sampling, seed: int) -> Rollout:
        try:
            return await self._workflow.run(task, group, index, sampling, seed)
        except Exception as error:  # noqa: BLE001 - a user's workflow may raise anything; it breaks this rollout only
            last = traceback.extract_tb(error.__traceback__)[-1]
            return Rollout(
                id=f"{group}-{index}",
                task_id=task.id,
                group=group,
                index=index,
                turns=(),
                text="",
                status="error",
                sampling=sampling,
                error=f"{type(error).__name__}: {error} ({last.filename}:{last.lineno})",
            )


def check_errors(groups: Sequence[Group], max_share: float) -> None:
    """Raises `RolloutError` when too large a share of the rollouts broke; shows the first one."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    broken = [rollout for rollout in rollouts if rollout.status == "error"]
    if broken and len(broken) > max_share * len(rollouts):
        raise RolloutError(
            f"{len(broken)} of {len(rollouts)} rollouts broke, more than rollout.max_error_share "
            f"({max_share:g}) allows. The first, of task {broken[0].task_id}: {broken[0].error}"
        )
