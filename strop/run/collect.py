"""A step's rollouts: as many groups as the step wants, and what the algorithm needs beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from strop.algorithms.groups import has_signal
from strop.algorithms.table import needs_greedy_answer
from strop.config.schema import Run
from strop.config.schema.algorithm import DynamicSampling, RolloutAlgorithm
from strop.errors import RewardError
from strop.run.explorer import Explored, Explorer, check_errors
from strop.run.sampling import sampling_of
from strop.run.tasks import TrainTasks
from strop.types import ExperienceGroup, Group, Task
from strop.workflows.experiences import group_to_experiences


@dataclass(frozen=True, slots=True)
class Collected:
    """What a step sampled, and what of it is learned from."""

    sampled: list[Group]
    learnable: list[ExperienceGroup]
    metrics: dict[str, float]


class Collector:
    """Takes tasks and has them answered until a step is full."""

    def __init__(self, run: Run, algorithm: RolloutAlgorithm, explorer: Explorer, tasks: TrainTasks) -> None:
        self._run = run
        self._algorithm = algorithm
        self._explorer = explorer
        self._tasks = tasks
        self._sampling = sampling_of(run.rollout.sampling, run.data.max_response_tokens)
        self._dynamic: DynamicSampling | None = getattr(algorithm, "dynamic_sampling", None)

    def collect(self, step: int) -> Collected:
        """Sample and score a step. Raises `RolloutError` where too much of it broke."""
        wanted = self._run.trainer.tasks_per_step
        tries = self._dynamic.max_tries if self._dynamic else 1
        sampled: list[Group] = []
        learnable: list[ExperienceGroup] = []
        seconds = {"time/sample_seconds": 0.0, "time/reward_seconds": 0.0}
        for _ in range(tries):
            tasks = self._take(wanted - len(learnable))
            explored = self._explore(tasks, step, first=len(sampled))
            seconds["time/sample_seconds"] += explored.sample_seconds
            seconds["time/reward_seconds"] += explored.reward_seconds
            sampled += explored.groups
            learnable += self._learnable(tasks, explored.groups, step)
            if len(learnable) == wanted:
                break
        metrics = dict(seconds)
        if self._dynamic is not None:
            metrics["groups/left_out"] = float(len(sampled) - len(learnable))
        return Collected(sampled, learnable, metrics)

    def _take(self, count: int) -> list[Task]:
        while not (tasks := self._tasks.take(count)):
            self._explorer.check()
        return tasks

    def _explore(self, tasks: Sequence[Task], step: int, *, first: int) -> Explored:
        explored = self._explorer.run(
            tasks,
            self._algorithm.rollouts_per_task,
            self._sampling,
            purpose="train",
            step=step,
            first=first,
        )
        check_errors(explored.groups, self._run.rollout.max_error_share)
        return explored

    def _learnable(self, tasks: Sequence[Task], groups: Sequence[Group], step: int) -> list[ExperienceGroup]:
        if needs_greedy_answer(self._algorithm):
            return self._with_baselines(tasks, groups, step)
        kept = groups if self._dynamic is None else _telling(groups, self._dynamic)
        return [group_to_experiences(group) for group in kept]

    def _with_baselines(
        self, tasks: Sequence[Task], groups: Sequence[Group], step: int
    ) -> list[ExperienceGroup]:
        """Each with the reward of its task's greedy answer; a group whose greedy answer broke is left out."""
        greedy = replace(self._sampling, temperature=0.0)
        explored = self._explorer.run(tasks, 1, greedy, purpose="greedy", step=step)
        check_errors(explored.groups, self._run.rollout.max_error_share)
        rewards = [answer.rollouts[0].reward for answer in explored.groups]
        return [
            group_to_experiences(group, reward)
            for group, reward in zip(groups, rewards, strict=True)
            if reward is not None
        ]


def _telling(groups: Sequence[Group], section: DynamicSampling) -> list[Group]:
    """The groups that teach something (DAPO's dynamic sampling, arXiv 2503.14476)."""
    return [group for group in groups if has_signal(_compared(group, section.metric))]


def _compared(group: Group, metric: str | None) -> list[float]:
    """What tells the group's answers apart: their rewards, or a part of them. Broken answers have none."""
    scored = [rollout for rollout in group.rollouts if rollout.reward is not None]
    if metric is None:
        return [rollout.reward for rollout in scored if rollout.reward is not None]
    for rollout in scored:
        if metric not in rollout.reward_parts:
            raise RewardError(
                f"algorithm.dynamic_sampling.metric: the reward of task {group.task.id!r} has no part "
                f"{metric!r}; it has {', '.join(rollout.reward_parts)}."
            )
    return [rollout.reward_parts[metric] for rollout in scored]
