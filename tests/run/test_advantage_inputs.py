"""Experiences as estimators want them, and back; denominators that depend on trainer and sampler."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from strop.config.schema.algorithm import GrpoConfig, RolloutAlgorithmConfig
from strop.config.schema.policy_loss import ImportanceCorrectionConfig, RejectionRuleConfig
from strop.errors import RewardError
from strop.run.optimize.advantage_inputs import gather_targets, make_rollout_batch, split_by_experience
from strop.run.optimize.minibatches import count_kept, mean_importance_weight
from strop.types import Experience, FloatArray


def experience(group: str, index: int, mask: list[int], reward: float, turn: int = 0) -> Experience:
    nothing = np.zeros(len(mask), dtype=np.float32)
    return Experience(
        id=f"{group}-{index}.{turn}",
        task_id=group,
        group=group,
        index=index,
        turn=turn,
        token_ids=np.arange(len(mask), dtype=np.int32),
        loss_mask=np.array(mask, dtype=np.bool_),
        sampler_logprobs=nothing,
        policy_logprobs=nothing,
        reward=reward,
        status="ok",
        temperature=1.0,
        versions=(0,),
    )


EXPERIENCES = [
    experience("b", 0, [0, 1, 1], 1.0),
    # A rollout whose two turns are sequences of their own; the first has the user's words within.
    experience("b", 2, [0, 1, 0, 1], 0.5, turn=0),
    experience("b", 2, [0, 0, 1], 0.5, turn=1),
    experience("a", 0, [0, 1], 0.0),
]


def test_a_rollout_counts_once_however_many_experiences_it_gave() -> None:
    scored = make_rollout_batch(EXPERIENCES, baselines={"a": 0.25, "b": 0.75})
    assert scored.rewards.tolist() == [1.0, 0.5, 0.0]
    assert scored.group.tolist() == [0, 0, 1]
    assert scored.tokens.tolist() == [2, 3, 1]
    assert scored.sequences is not None
    assert scored.sequences.tolist() == [1, 2, 1]
    assert scored.baselines is not None
    assert scored.baselines.tolist() == [0.75, 0.75, 0.25]


def test_parts_of_the_reward_are_picked_by_name() -> None:
    parts = [{"acc": 1.0, "format": 0.5}, {"acc": 0.0, "format": 1.0}]
    found = [
        replace(e, reward_parts=each) for e, each in zip((EXPERIENCES[0], EXPERIENCES[3]), parts, strict=True)
    ]
    scored = make_rollout_batch(found, parts=("format", "acc"))
    assert scored.reward_parts is not None
    assert scored.reward_parts.tolist() == [[0.5, 1.0], [1.0, 0.0]]
    partly = [found[0], replace(found[1], reward_parts={"acc": 0.0, "other": 2.0})]
    for names in (("format", "other"), None):
        lacking = make_rollout_batch(partly, parts=names).reward_parts
        assert lacking is not None
        assert lacking[:, -1].isnan().tolist() == [True, False]
    with pytest.raises(RewardError, match="no part 'length'; it has acc, format"):
        make_rollout_batch(found, parts=("length",))


def test_values_go_to_the_targets_and_back() -> None:
    values = torch.arange(1.0, 7)
    placed = split_by_experience(values, EXPERIENCES)
    assert [each.tolist() for each in placed] == [[0, 1, 2], [0, 3, 0, 4], [0, 0, 5], [0, 6]]
    assert torch.equal(gather_targets(placed, EXPERIENCES), values)


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
