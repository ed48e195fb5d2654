"""Pipeline of experience operators, as `buffer.pipeline` lists them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from strop.config.schema.buffer import (
    CorrectnessFilterConfig,
    CustomOperatorConfig,
    DataJuicerConfig,
    DiversityRewardConfig,
    ExperienceOperatorConfig,
    HumanFeedbackConfig,
    LengthRewardConfig,
    LlmQualityConfig,
    RelabelConfig,
    RewardFilterConfig,
    RewardShapingConfig,
    RewardStdFilterConfig,
)
from strop.config.user_code import ImportPath, construct
from strop.errors import ConfigError, RolloutError
from strop.pipelines.operators import (
    CorrectnessFilter,
    CountingOperator,
    DiversityReward,
    ExperienceOperator,
    ExperienceServices,
    GroupsOperator,
    LengthReward,
    Relabel,
    RewardFilter,
    RewardShaping,
    RewardStdFilter,
)
from strop.types import RolloutGroup

log = logging.getLogger("strop.pipelines")


@dataclass(frozen=True, slots=True)
class ExperiencePipeline:
    """Operators that are applied to each scored group, in order."""

    operators: tuple[ExperienceOperator, ...]
    effects: PipelineEffects
    """Effect of each operator, for the metrics of a step."""

    def __call__(self, groups: Sequence[RolloutGroup]) -> list[RolloutGroup | None]:
        """Each group after all operators; None for one that was removed. Raises `RolloutError` for an operator that
        returns something else, and what an operator raises."""
        left = dict(enumerate(groups))
        for operator, effect in zip(self.operators, self.effects.effects, strict=True):
            for place, result in zip(list(left), _results(operator, list(left.values())), strict=True):
                effect.add(left[place], result)
                if result is None:
                    del left[place]
                else:
                    left[place] = result
        return [
            left[place] if place in left and left[place].rollouts else None for place in range(len(groups))
        ]

    def take_metrics(self) -> dict[str, float]:
        """Effects and counts of the operators since the last call."""
        metrics = self.effects.take_metrics()
        for name, operator in zip(self.effects.names, self.operators, strict=True):
            if isinstance(operator, CountingOperator):
                metrics |= {f"pipeline/{name}/{key}": value for key, value in operator.take_counts().items()}
        return metrics


def _results(operator: ExperienceOperator, groups: Sequence[RolloutGroup]) -> list[RolloutGroup | None]:
    """The results of an operator. Raises `RolloutError` for what is no result."""
    if isinstance(operator, GroupsOperator):
        return operator.process_groups(groups)
    results = []
    for group in groups:
        result = operator(group)
        if result is not None and (not isinstance(result, RolloutGroup) or result.id != group.id):
            raise RolloutError(
                f"buffer.pipeline: {type(operator).__name__} returned {type(result).__name__} for group "
                f"{group.id}; an operator returns the group with changed rollouts, or None."
            )
        results.append(result)
    return results


def make_pipeline(
    sections: Sequence[ExperienceOperatorConfig], services: ExperienceServices
) -> ExperiencePipeline:
    """The operators that a run file lists.

    Raises ConfigError for an operator of the user that cannot be made, and for a language model without an address.
    """
    names = tuple(f"{number}_{section.type}" for number, section in enumerate(sections))
    return ExperiencePipeline(tuple(_make(section, services) for section in sections), PipelineEffects(names))


def _make(section: ExperienceOperatorConfig, services: ExperienceServices) -> ExperienceOperator:
    """An operator that asks a model, a person or a service is imported where a run has it."""
    match section:
        case RewardFilterConfig():
            return RewardFilter(section.min_reward)
        case RewardStdFilterConfig():
            return RewardStdFilter(section.threshold, is_sample=section.deviation == "sample")
        case CorrectnessFilterConfig():
            return CorrectnessFilter(section.metric, section.threshold)
        case RewardShapingConfig():
            return RewardShaping(section.terms)
        case LlmQualityConfig():
            from strop.pipelines.operators import LlmQuality

            return LlmQuality(section, services, log.warning)
        case DiversityRewardConfig():
            return DiversityReward(section.weight, section.ngram_words)
        case LengthRewardConfig():
            return LengthReward(section.weight, section.correct_reward)
        case RelabelConfig():
            return Relabel(section.threshold, section.above, section.below)
        case HumanFeedbackConfig():
            from strop.pipelines.human_feedback import HumanFeedback

            return HumanFeedback(section, services)
        case DataJuicerConfig():
            from strop.pipelines.juicer.operators import DataJuicer

            return DataJuicer(section)
        case CustomOperatorConfig():
            return load_operator(section)


def load_operator(section: CustomOperatorConfig) -> ExperienceOperator:
    """The operator of the user. Raises ConfigError for a class that cannot be made."""
    what = f"buffer.pipeline: operator {section.operator!r}"
    kind = ImportPath(section.operator, what, "Class", (), ConfigError).load()
    operator: ExperienceOperator = construct(kind, what, ConfigError, **section.args)
    if not callable(operator):
        raise ConfigError(f"{what}: its objects cannot be called; write a method __call__(self, group).")
    return operator


@dataclass(slots=True)
class OperatorEffect:
    """Counts of one operator over the groups that it has seen; failed rollouts are not counted."""

    seen: int = 0
    """Rollouts in the operator's input."""
    left: int = 0
    """Rollouts that it left."""
    changed: int = 0
    """Rollouts that it left with another reward."""
    change: float = 0.0
    """Sum of the changes of these rewards."""

    def add(self, before: RolloutGroup, after: RolloutGroup | None) -> None:
        """Count a group."""
        given = {r.index: r.reward for r in before.rollouts if r.reward is not None}
        rollouts = () if after is None else after.rollouts
        left = [(r.reward, given[r.index]) for r in rollouts if r.reward is not None and r.index in given]
        self.seen += len(given)
        self.left += len(left)
        self.changed += sum(new != old for new, old in left)
        self.change += sum(new - old for new, old in left)


@dataclass(slots=True)
class PipelineEffects:
    """Effects of the operators of a pipeline since the metrics were taken last."""

    names: tuple[str, ...]
    """Name of each operator in metrics, such as `2_reward_shaping`."""
    effects: list[OperatorEffect] = field(init=False)

    def __post_init__(self) -> None:
        self._reset()

    def take_metrics(self) -> dict[str, float]:
        """Metrics of each operator that has seen a rollout; the counts begin again."""
        metrics: dict[str, float] = {}
        for name, effect in zip(self.names, self.effects, strict=True):
            if not effect.seen:
                continue
            metrics[f"pipeline/{name}/removed_fraction"] = 1 - effect.left / effect.seen
            if effect.left:
                metrics[f"pipeline/{name}/changed_fraction"] = effect.changed / effect.left
                metrics[f"pipeline/{name}/reward_change"] = effect.change / effect.left
        self._reset()
        return metrics

    def _reset(self) -> None:
        self.effects = [OperatorEffect() for _ in self.names]
