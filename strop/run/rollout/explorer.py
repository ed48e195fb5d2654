"""The explorer: samples and scores groups of rollouts for tasks; ids of groups, and padding of a step to a fixed number
of groups.

An id contains the step in which the group was sampled. Under the `fixed` style a step always puts as many
groups into the buffer as it has tasks; missing ones are empty. So a reader that takes a step's worth of groups
gets exactly one complete step.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from strop.config.schema.run import Run
from strop.config.schema.task_pipeline import ReplyConfig
from strop.errors import RolloutError
from strop.protocols import Sampler
from strop.run.rollout.rollout_services import RewardManager, RolloutServices, make_workflow_runners
from strop.seeds import derive_seed
from strop.types import ExperienceGroup, Rollout, RolloutGroup, SamplingParams, Task
from strop.workers.signals import StopSignal
from strop.workers.threads import EventLoopThread, gather_or_cancel
from strop.workflows.runner import WorkflowRunner

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_PADDING = "none"


def group_id(purpose: str, step: int, number: int) -> str:
    """Id of a group: `train-000012-00003` is the fourth group of step 12."""
    return f"{purpose}-{step:06d}-{number:05d}"


def step_of_group(id: str) -> int:
    """Step in which a group was sampled."""
    return int(id.rsplit("-", 2)[1])


def pad_groups(groups: Sequence[ExperienceGroup], step: int, size: int) -> list[ExperienceGroup]:
    """The groups, followed by empty ones up to `size`."""
    padding = [ExperienceGroup(group_id(_PADDING, step, n), ()) for n in range(len(groups), size)]
    return [*groups, *padding]


def remove_padding(groups: Sequence[ExperienceGroup]) -> list[ExperienceGroup]:
    """The groups without the empty ones that `pad_groups` added."""
    return [group for group in groups if not group.id.startswith(f"{_PADDING}-")]


_POLL_SECONDS = 0.1
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ExplorationResult:
    """Scored groups of one exploration, and its durations."""

    groups: list[RolloutGroup]
    sample_seconds: float
    """Time from the start to the end of the last rollout; scoring overlaps it."""
    reward_seconds: float
    """Time waited for scores after the last rollout."""


@dataclass(frozen=True, slots=True)
class ScoredGroup:
    """A group with rewards, and the greedy rollout of its task if the algorithm compares with one."""

    group: RolloutGroup
    greedy: RolloutGroup | None


class PendingGroup:
    """A group that is being sampled or scored."""

    def __init__(self, task: Task, step: int, number: int, rollouts: int) -> None:
        self.task = task
        self.step = step
        self.number = number
        """Position of the task within its step."""
        self.rollouts_sampling = rollouts
        """Number of rollouts that are not sampled yet."""
        self.sampled = 0.0
        """Time at which the last rollout so far was sampled."""
        self.completed = 0.0
        """Time at which the group was scored."""
        self.result: Future[ScoredGroup]

    @property
    def id(self) -> str:
        """Id of the group."""
        return group_id("train", self.step, self.number)


class Explorer:
    """Runs a workflow for every rollout of every task, concurrently, and scores each rollout when it completes.

    All rollouts run in one event loop, which lives as long as the run. They begin in the order (task, index),
    each with a seed derived from its position, so that timing does not change a result.
    """

    def __init__(
        self,
        runners: Mapping[str, WorkflowRunner],
        rewards: Mapping[str, RewardManager],
        event_loop: EventLoopThread,
        stop: StopSignal,
        *,
        seed: int,
    ) -> None:
        """`runners` and `rewards` by purpose; purposes without an entry use that of `train`."""
        self._runners = runners
        self._rewards = rewards
        self._event_loop = event_loop
        self._stop = stop
        self._seed = seed
        self._slots: dict[WorkflowRunner, asyncio.Semaphore] = {}
        # The current device is a property of the thread.
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            event_loop.call(torch.cuda.set_device, torch.cuda.current_device())

    @classmethod
    def of(
        cls,
        run: Run,
        engine: Sampler,
        tokenizer: PreTrainedTokenizerBase,
        services: RolloutServices,
        stop: StopSignal,
    ) -> Explorer:
        """The explorer of a run, which samples from `engine`. Raises as `make_workflow_runners` does."""
        runners = make_workflow_runners(run, engine, tokenizer, services.workflow_services)
        return cls(runners, services.rewards, services.event_loop, stop, seed=run.seed)

    @property
    def max_concurrent_rollouts(self) -> int | None:
        """Maximum number of concurrent training rollouts; None for no limit."""
        return self._runner("train").max_concurrent_rollouts

    def check(self) -> None:
        """Raises `Interrupted` if a stop was requested."""
        self._stop.check()

    def run(
        self,
        tasks: Sequence[Task],
        rollouts_per_task: int,
        sampling: SamplingParams,
        *,
        purpose: str,
        step: int,
        first: int = 0,
        numbers: Sequence[int] | None = None,
    ) -> ExplorationResult:
        """Sample and score groups, in the order of the tasks.

        Group numbers, on which the seeds depend, begin with `first`, for a step that is sampled by several calls, or
        are `numbers`. Raises `Interrupted` if a stop was requested; unfinished rollouts are dropped.
        """
        manager = self._rewards.get(purpose, self._rewards["train"])
        started = time.perf_counter()
        numbers = range(first, first + len(tasks)) if numbers is None else numbers
        groups, sampled = self._run_groups(
            tasks, rollouts_per_task, sampling, purpose, step, numbers, manager
        )
        self._stop.check()
        return ExplorationResult(groups, sampled - started, time.perf_counter() - sampled)

    def sample(
        self,
        tasks: Sequence[Task],
        rollouts_per_task: int,
        sampling: SamplingParams,
        *,
        purpose: str,
        step: int,
        first: int = 0,
    ) -> list[RolloutGroup]:
        """Groups without scores. Raises `Interrupted` like `run`."""
        numbers = range(first, first + len(tasks))
        return self._run_groups(tasks, rollouts_per_task, sampling, purpose, step, numbers, None)[0]

    def sample_replies(
        self, prompts: Sequence[str], section: ReplyConfig, seeds: Sequence[int]
    ) -> list[str | None]:
        """Replies of the engine to prompts that are no tasks, such as those of a judge; None for a prompt that is too
        long. Raises `Interrupted` like `run`."""
        runner = self._runner("train")
        sampling = SamplingParams(temperature=section.temperature, max_tokens=section.max_tokens)

        async def all_replies() -> list[str | None]:
            return await gather_or_cancel(
                [runner.reply(prompt, sampling, seed) for prompt, seed in zip(prompts, seeds, strict=True)]
            )

        return self._event_loop.run(self._until_stopped(all_replies()))

    def start_group(
        self,
        pending: PendingGroup,
        rollouts_per_task: int,
        sampling: SamplingParams,
        greedy: SamplingParams | None,
        notify: Callable[[], None],
    ) -> None:
        """Start a training group and return; `greedy` adds a greedy rollout of the task.

        `notify` is called in the event loop's thread whenever a rollout is sampled and when the group is
        complete.
        """
        pending.result = self._event_loop.submit(
            self._group(pending, rollouts_per_task, sampling, greedy, notify)
        )
        pending.result.add_done_callback(lambda _: notify())

    def cancel(self, pending: Sequence[PendingGroup]) -> None:
        """Cancel groups; rollouts that are not complete are dropped."""
        for group in pending:
            group.result.cancel()

    def _run_groups(
        self,
        tasks: Sequence[Task],
        rollouts_per_task: int,
        sampling: SamplingParams,
        purpose: str,
        step: int,
        numbers: Sequence[int],
        manager: RewardManager | None,
    ) -> tuple[list[RolloutGroup], float]:
        """The groups, and the time at which the last rollout was sampled."""
        sampled = time.perf_counter()

        async def one(task: Task, number: int, index: int) -> Rollout:
            nonlocal sampled
            rollout = await self._rollout(task, purpose, step, number, index, sampling)
            sampled = time.perf_counter()
            return rollout if manager is None else await manager.score_rollout(task, rollout)

        async def all_groups() -> list[RolloutGroup]:
            rollouts = await gather_or_cancel(
                [
                    one(task, number, index)
                    for number, task in zip(numbers, tasks, strict=True)
                    for index in range(rollouts_per_task)
                ]
            )
            groups = [
                RolloutGroup(
                    group_id(purpose, step, numbers[place]),
                    task,
                    tuple(rollouts[place * rollouts_per_task : (place + 1) * rollouts_per_task]),
                )
                for place, task in enumerate(tasks)
            ]
            return groups if manager is None else await manager.score_batch(groups)

        return self._event_loop.run(self._until_stopped(all_groups())), sampled

    async def _until_stopped(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Result of the coroutine; on a stop request it is cancelled, and `Interrupted` is raised."""
        task = asyncio.ensure_future(coroutine)
        while not task.done():
            await asyncio.wait([task], timeout=_POLL_SECONDS)
            if self._stop.received is not None and not task.done():
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
                self._stop.check()
        return task.result()

    async def _group(
        self,
        pending: PendingGroup,
        rollouts_per_task: int,
        sampling: SamplingParams,
        greedy: SamplingParams | None,
        notify: Callable[[], None],
    ) -> ScoredGroup:
        manager, task = self._rewards["train"], pending.task

        async def one(purpose: str, index: int, sampling: SamplingParams) -> Rollout:
            rollout = await self._rollout(task, purpose, pending.step, pending.number, index, sampling)
            pending.rollouts_sampling -= 1
            pending.sampled = time.perf_counter()
            notify()
            return await manager.score_rollout(task, rollout)

        rollouts = await gather_or_cancel(
            [
                *(one("train", index, sampling) for index in range(rollouts_per_task)),
                *([] if greedy is None else [one("greedy", 0, greedy)]),
            ]
        )
        groups = [RolloutGroup(pending.id, task, tuple(rollouts[:rollouts_per_task]))]
        if greedy is not None:
            name = group_id("greedy", pending.step, pending.number)
            groups.append(RolloutGroup(name, task, tuple(rollouts[rollouts_per_task:])))
        group, *others = await manager.score_batch(groups)
        pending.completed = time.perf_counter()
        return ScoredGroup(group, others[0] if others else None)

    async def _rollout(
        self, task: Task, purpose: str, step: int, number: int, index: int, sampling: SamplingParams
    ) -> Rollout:
        runner = self._runner(purpose)
        name = group_id(purpose, step, number)
        seed = derive_seed(self._seed, purpose, step, number, index)
        async with self._slot(runner):
            return await runner.run(task, name, index, sampling, seed)

    def _runner(self, purpose: str) -> WorkflowRunner:
        return self._runners.get(purpose, self._runners["train"])

    def _slot(self, runner: WorkflowRunner) -> AbstractAsyncContextManager[None]:
        limit = runner.max_concurrent_rollouts
        if limit is None:
            return nullcontext()
        if runner not in self._slots:
            self._slots[runner] = asyncio.Semaphore(limit)
        return self._slots[runner]


def check_error_fraction(groups: Sequence[RolloutGroup], max_fraction: float) -> None:
    """Raises `RolloutError` if too large a fraction of the rollouts failed; quotes the first failure.

    A rollout that all reward functions leave out did not fail.
    """
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    failed = [
        rollout for rollout in rollouts if rollout.status == "error" and rollout.failure_cause != "unscored"
    ]
    if failed and len(failed) > max_fraction * len(rollouts):
        raise RolloutError(
            f"{len(failed)} of {len(rollouts)} rollouts failed, more than rollout.max_error_fraction "
            f"({max_fraction:g}) allows. The first one, of task {failed[0].task_id}: {failed[0].error}"
        )
