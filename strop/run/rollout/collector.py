"""Collection of the groups of one step, and the choice of groups to train on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from strop.algorithms.algorithm import has_reward_variance
from strop.config.schema.algorithm import RolloutAlgorithmConfig
from strop.config.schema.policy_gradient import DynamicSamplingConfig, OversamplingConfig
from strop.config.schema.run import Run
from strop.errors import RewardError
from strop.pipelines.experience_pipeline import ExperiencePipeline, make_pipeline
from strop.pipelines.operators import ExperienceServices
from strop.reward_comparison import exceeds, reaches
from strop.run.check.refusals import missing_component
from strop.run.rollout.explorer import ExplorationResult, Explorer, ScoredGroup, check_error_fraction
from strop.run.rollout.rollout_services import sampling_params
from strop.run.rollout.tasks import TrainTaskSource
from strop.runs.folder import RunFolder
from strop.types import ExperienceGroup, RolloutGroup, SamplingParams, Task
from strop.workflows.experiences import group_to_experiences


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Settings of the run file for the sampling of groups."""

    tasks_per_step: int
    rollouts_per_task: int
    sampling: SamplingParams
    greedy: SamplingParams | None
    """Sampling of the greedy baseline rollout; None if the algorithm has no such baseline."""
    dynamic: DynamicSamplingConfig | None
    oversampling: OversamplingConfig | None
    max_error_fraction: float
    pipeline: ExperiencePipeline

    @classmethod
    def of(cls, run: Run, algorithm: RolloutAlgorithmConfig, explorer: Explorer) -> GroupSettings:
        """Settings of a run, whose operators use the explorer's engine."""
        folder = RunFolder.of(run)
        services = ExperienceServices(
            folder.judge_cache / "pipeline", folder.annotations, explorer.check, explorer.sample_replies
        )
        sampling = sampling_params(run.rollout.sampling, run.data.max_response_tokens)
        return cls(
            tasks_per_step=run.trainer.tasks_per_step,
            rollouts_per_task=algorithm.rollouts_per_task,
            sampling=sampling,
            greedy=replace(sampling, temperature=0.0) if algorithm.needs_greedy_baseline else None,
            dynamic=algorithm.dynamic_sampling,
            oversampling=algorithm.group_preference,
            max_error_fraction=run.rollout.max_error_fraction,
            pipeline=make_pipeline(run.buffer.pipeline, services),
        )

    @property
    def rollouts_per_group(self) -> int:
        """Rollouts of a group, the greedy one included."""
        return self.rollouts_per_task + (self.greedy is not None)

    @property
    def filters_groups(self) -> bool:
        """Whether a group may be dropped for its rewards."""
        return self.dynamic is not None or self.oversampling is not None or bool(self.pipeline.operators)

    @property
    def sampled_per_task(self) -> int:
        """Number of sampled tasks for each task that is trained on."""
        return 1 if self.oversampling is None else self.oversampling.factor

    @property
    def max_tries(self) -> int:
        """Maximum number of times that a step takes tasks, to replace filtered groups."""
        return self.dynamic.max_tries if self.dynamic else 1


@dataclass(frozen=True, slots=True)
class CollectedStep:
    """All groups that a step sampled, and those to train on."""

    sampled: list[RolloutGroup]
    learnable: list[ExperienceGroup]
    metrics: dict[str, float]


class Collector:
    """Takes tasks and has the explorer sample them until a step has enough groups."""

    def __init__(
        self, run: Run, algorithm: RolloutAlgorithmConfig, explorer: Explorer, tasks: TrainTaskSource
    ) -> None:
        self._settings = GroupSettings.of(run, algorithm, explorer)
        self._explorer = explorer
        self._tasks = tasks
        self._observed: dict[str, float] = {}
        """Metrics of the tasks that were drawn last."""

    def collect(self, step: int) -> CollectedStep:
        """Sample and score a step. Raises `RolloutError` if too many of its rollouts fail."""
        size, factor = self._settings.tasks_per_step, self._settings.sampled_per_task
        sampled: list[RolloutGroup] = []
        learnable: list[ExperienceGroup] = []
        seconds = {"time/sample_seconds": 0.0, "time/reward_seconds": 0.0}
        for _ in range(self._settings.max_tries):
            tasks = self._take((size - len(learnable)) * factor)
            explored = self._explore(tasks, step, first=len(sampled))
            seconds["time/sample_seconds"] += explored.sample_seconds
            seconds["time/reward_seconds"] += explored.reward_seconds
            sampled += explored.groups
            found = self._learnable(tasks, explored.groups, step)
            learnable += prefer_groups(found, self._settings.oversampling)[: size - len(learnable)]
            if len(learnable) == size:
                break
        metrics = seconds | self._observed
        if self._settings.filters_groups:
            metrics["groups/filtered"] = float(len(sampled) - len(learnable))
        metrics |= self._settings.pipeline.take_metrics()
        return CollectedStep(sampled, learnable, metrics)

    def _take(self, count: int) -> list[Task]:
        while not (tasks := self._tasks.take(count)):
            self._explorer.check()
        return tasks

    def _explore(self, tasks: Sequence[Task], step: int, *, first: int) -> ExplorationResult:
        settings = self._settings
        explored = self._explorer.run(
            tasks, settings.rollouts_per_task, settings.sampling, purpose="train", step=step, first=first
        )
        check_error_fraction(explored.groups, settings.max_error_fraction)
        self._observed = self._tasks.observe(explored.groups)
        return explored

    def _learnable(
        self, tasks: Sequence[Task], groups: Sequence[RolloutGroup], step: int
    ) -> list[ExperienceGroup]:
        greedy: Sequence[RolloutGroup | None] = [None] * len(groups)
        if self._settings.greedy is not None:
            explored = self._explorer.run(tasks, 1, self._settings.greedy, purpose="greedy", step=step)
            check_error_fraction(explored.groups, self._settings.max_error_fraction)
            greedy = explored.groups
        scored = [ScoredGroup(group, baseline) for group, baseline in zip(groups, greedy, strict=True)]
        found = learnable_groups(scored, self._settings)
        return [group for group in found if group is not None]


def prefer_groups(
    groups: Sequence[ExperienceGroup], section: OversamplingConfig | None
) -> Sequence[ExperienceGroup]:
    """The groups that `algorithm.oversampling` prefers before the others, each in their order."""
    return groups if section is None else sorted(groups, key=lambda group: not _is_preferred(group, section))


def _is_preferred(group: ExperienceGroup, section: OversamplingConfig) -> bool:
    rewards = {experience.index: experience.reward for experience in group.experiences}
    mean = sum(rewards.values()) / len(rewards)
    complete = not any(experience.status == "truncated" for experience in group.experiences)
    is_medium = reaches(mean, section.min_mean_reward) and not exceeds(mean, section.max_mean_reward)
    return is_medium and (complete or not section.prefer_complete)


def learnable_groups(scored: Sequence[ScoredGroup], settings: GroupSettings) -> list[ExperienceGroup | None]:
    """Each group's experiences after the pipeline; None for a filtered group.

    Dynamic sampling filters groups without reward variance (DAPO, arXiv 2503.14476). With a greedy baseline, a
    group whose greedy rollout failed is filtered.
    """
    accepted = {place: each for place, each in enumerate(scored) if _is_learnable(each, settings)}
    left = settings.pipeline([each.group for each in accepted.values()])
    found: list[ExperienceGroup | None] = [None] * len(scored)
    for (place, each), group in zip(accepted.items(), left, strict=True):
        baseline = each.greedy.rollouts[0].reward if settings.greedy is not None and each.greedy else None
        found[place] = None if group is None else group_to_experiences(group, baseline)
    return found


def _is_learnable(scored: ScoredGroup, settings: GroupSettings) -> bool:
    """Whether a group has the rewards that the algorithm needs."""
    if settings.greedy is not None:
        assert scored.greedy is not None
        return scored.greedy.rollouts[0].reward is not None
    if settings.dynamic is None:
        return True
    return has_reward_variance(_compared_values(scored.group, settings.dynamic.metric))


def _compared_values(group: RolloutGroup, metric: str | None) -> list[float]:
    """Values by which the group's rollouts differ: rewards, or one reward component. Failed ones have none."""
    scored = [rollout for rollout in group.rollouts if rollout.reward is not None]
    if metric is None:
        return [rollout.reward for rollout in scored if rollout.reward is not None]
    for rollout in scored:
        if metric not in rollout.reward_parts:
            raise RewardError(missing_component(metric, group.task.id, rollout.reward_parts))
    return [rollout.reward_parts[metric] for rollout in scored]
