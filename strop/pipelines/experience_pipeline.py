"""Pipeline of experience operators, as `buffer.pipeline` lists them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from strop.config.schema.pipeline import (
    CustomOperatorConfig,
    DataJuicerConfig,
    DiversityRewardConfig,
    ExperienceOperatorConfig,
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
from strop.pipelines.llm_quality import LlmQuality
from strop.pipelines.operators import ExperienceOperator, RewardFilter, RewardShaping, RewardStdFilter
from strop.types import RolloutGroup

log = logging.getLogger("strop.pipelines")


@dataclass(frozen=True, slots=True)
class ExperiencePipeline:
    """Operators that are applied to each scored group, in order."""

    operators: tuple[ExperienceOperator, ...]
    effects: PipelineEffects
    """Effect of each operator, for the metrics of a step."""

    def __call__(self, group: RolloutGroup) -> RolloutGroup | None:
        """The group after all operators; None if one removes it. Raises `RolloutError` for an operator that
        returns something else, and what an operator raises."""
        for operator, effect in zip(self.operators, self.effects.effects, strict=True):
            result = operator(group)
            if result is not None and (not isinstance(result, RolloutGroup) or result.id != group.id):
                raise RolloutError(
                    f"buffer.pipeline: {type(operator).__name__} returned {type(result).__name__} for group "
                    f"{group.id}; an operator returns the group with changed rollouts, or None."
                )
            effect.add(group, result)
            if result is None:
                return None
            group = result
        return group if group.rollouts else None


def make_pipeline(sections: Sequence[ExperienceOperatorConfig], replies: Path) -> ExperiencePipeline:
    """The operators that a run file lists; `replies` is the folder for the replies of language models.

    Raises ConfigError for an operator of the user that cannot be made, and for a language model without an address.
    """
    names = tuple(f"{number}_{section.type}" for number, section in enumerate(sections))
    return ExperiencePipeline(tuple(_make(section, replies) for section in sections), PipelineEffects(names))


def _make(section: ExperienceOperatorConfig, replies: Path) -> ExperienceOperator:
    match section:
        case RewardFilterConfig():
            return RewardFilter(section.min_reward)
        case RewardStdFilterConfig():
            return RewardStdFilter(section.threshold, is_sample=section.deviation == "sample")
        case RewardShapingConfig():
            return RewardShaping(section.terms)
        case LlmQualityConfig():
            return LlmQuality(section, replies, log.warning)
        case DiversityRewardConfig():
            return DiversityReward(section.weight, section.ngram_words)
        case LengthRewardConfig():
            return LengthReward(section.weight, section.correct_reward)
        case RelabelConfig():
            return Relabel(section.threshold, section.above, section.below)
        case DataJuicerConfig():
            return DataJuicer(section)
        case CustomOperatorConfig():
            return _load(section)


def _load(section: CustomOperatorConfig) -> ExperienceOperator:
    what = f"buffer.pipeline: operator {section.operator!r}"
    kind = ImportPath(section.operator, what, "Class", (), ConfigError).load()
    operator: ExperienceOperator = construct(kind, what, ConfigError, **section.args)
    if not callable(operator):
        raise ConfigError(f"{what}: its objects cannot be called; write a method __call__(self, group).")
    return operator
