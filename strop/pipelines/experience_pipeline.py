"""Pipeline of experience operators, as `buffer.pipeline` lists them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

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
from strop.pipelines.data_juicer import DataJuicer
from strop.pipelines.effects import PipelineEffects
from strop.pipelines.group_shaping import DiversityReward, LengthReward, Relabel
from strop.pipelines.human_feedback import HumanFeedback
from strop.pipelines.llm_quality import LlmQuality
from strop.pipelines.operators import (
    CorrectnessFilter,
    CountingOperator,
    ExperienceOperator,
    GroupsOperator,
    RewardFilter,
    RewardShaping,
    RewardStdFilter,
)
from strop.pipelines.services import ExperienceServices
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
            return LlmQuality(section, services, log.warning)
        case DiversityRewardConfig():
            return DiversityReward(section.weight, section.ngram_words)
        case LengthRewardConfig():
            return LengthReward(section.weight, section.correct_reward)
        case RelabelConfig():
            return Relabel(section.threshold, section.above, section.below)
        case HumanFeedbackConfig():
            return HumanFeedback(section, services)
        case DataJuicerConfig():
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
