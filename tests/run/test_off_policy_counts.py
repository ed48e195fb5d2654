"""Denominators of an update that depend on the difference between trainer and sampler."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from strop.config.schema.algorithm import RolloutAlgorithmConfig
from strop.config.schema.group_baselines import GrpoConfig
from strop.config.schema.off_policy import ImportanceCorrectionConfig, RejectionRuleConfig
from strop.run.optimize.off_policy_counts import count_kept, mean_importance_weight
from strop.types import Experience, FloatArray
from tests.run.test_advantage_inputs import experience


def logs(*ratios: float) -> FloatArray:
    """Log-probs of a prompt of one token and a response."""
    return np.log(np.array([1.0, *ratios], dtype=np.float32))


# The trainer's probability over the sampler's, 1/2 for all: 4, 1/2, and 3.
SAMPLED = [
    replace(experience("a", 0, [0, 1, 1], 1.0), sampler_logprobs=logs(0.5, 0.5)),
    replace(experience("a", 1, [0, 1], 0.0), sampler_logprobs=logs(0.5)),
]
TRAINER = [logs(2.0, 0.25), logs(1.5)]


def grpo(**parts: object) -> RolloutAlgorithmConfig:
    return GrpoConfig().model_copy(update=parts)


def test_kept_targets_are_counted_by_the_start_of_the_step() -> None:
    rules = (RejectionRuleConfig(low=0.6, high=3.5),)
    assert count_kept(grpo(rejection=rules), SAMPLED, TRAINER) == 1
    assert count_kept(grpo(rejection=(RejectionRuleConfig(over="sum", high=2.5),)), SAMPLED, TRAINER) == 2
    assert count_kept(grpo(), SAMPLED, TRAINER) is None
    assert count_kept(grpo(rejection=rules, old_policy="sampler"), SAMPLED, TRAINER) is None


@pytest.mark.parametrize(("level", "mean"), [("token", 7.5 / 3), ("sequence", 2.5)])
def test_the_mean_weight_is_over_the_step(level: str, mean: float) -> None:
    section = ImportanceCorrectionConfig.model_validate({"level": level, "cap": 9, "normalize": True})

    def found(experiences: list[Experience], correction: ImportanceCorrectionConfig) -> float:
        algorithm = grpo(importance_correction=correction)
        return mean_importance_weight(algorithm, experiences, lambda: TRAINER)

    assert found(SAMPLED, section) == pytest.approx(mean)
    assert found(SAMPLED, section.model_copy(update={"normalize": False})) == 1
