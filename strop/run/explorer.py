"""The explorer: tasks become groups of scored rollouts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass

from strop.errors import RolloutError
from strop.run.apart.step_groups import group_id
from strop.run.rewards import Rewards
from strop.run.stopping import StopSignal
from strop.seeds import derive_seed
from strop.types import Group, Rollout, Sampling, Task
from strop.workflows.runner import Runner

_POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Explored:
    """What one exploration gave, and what it took."""

    groups: list[Group]
    sample_seconds: float
    reward_seconds: float


class Explorer:
    """Runs a workflow for every rollout of every task side by side, then scores them.

    Rollouts begin in the order (task, index), each with a seed of its own, so that timing never
    changes a result.
    """

    def __init__(
        self, runners: Mapping[str, Runner], rewards: Mapping[str, Rewards], stop: StopSignal, *, seed: int
    ) -> None:
        """`runners` and `rewards` by purpose; `train` is that of all that have none of their own."""
        self._runners = runners
        self._rewards = rewards
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
        groups = self._rewards.get(purpose, self._rewards["train"]).score(groups)
        self._stop.check()
        return Explored(groups, sampled - started, time.perf_counter() - sampled)

    def check(self) -> None:
        """Raises `Interrupted` when a stop was asked for."""
        self._stop.check()

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
        names = [group_id(purpose, step, number) for number in numbers]
        runner = self._runners.get(purpose, self._runners["train"])
        room = nullcontext() if runner.most is None else asyncio.Semaphore(runner.most)

        async def one(task: Task, name: str, index: int, seed: int) -> Rollout:
            async with room:
                return await runner.run(task, name, index, sampling, seed)

        rollouts = asyncio.gather(
            *(
                one(task, name, index, derive_seed(self._seed, purpose, step, number, index))
                for number, task, name in zip(numbers, tasks, names, strict=True)
                for index in range(rollouts_per_task)
            )
        )
        while not rollouts.done():
            await asyncio.wait([rollouts], timeout=_POLL_SECONDS)
            if self._stop.received is not None:
                rollouts.cancel()
                with suppress(asyncio.CancelledError):
                    await rollouts
                self._stop.check()
        done = rollouts.result()
        return [
            Group(name, task, tuple(done[i * rollouts_per_task : (i + 1) * rollouts_per_task]))
            for i, (task, name) in enumerate(zip(tasks, names, strict=True))
        ]


def check_errors(groups: Sequence[Group], max_share: float) -> None:
    """Raises `RolloutError` when too large a share of the rollouts broke; shows the first one."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    broken = [rollout for rollout in rollouts if rollout.status == "error"]
    if broken and len(broken) > max_share * len(rollouts):
        raise RolloutError(
            f"{len(broken)} of {len(rollouts)} rollouts broke, more than rollout.max_error_share "
            f"({max_share:g}) allows. The first, of task {broken[0].task_id}: {broken[0].error}"
        )
