"""Distillation from log-probs of sampled tokens: estimates by hand, bounds, advantages, and the loss."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from strop.algorithms import registry, requirements
from strop.algorithms.distillation import bound_divergence, distillation_advantages, sampled_divergence
from strop.algorithms.rollout_batch import RolloutBatch
from strop.config.schema.algorithm import CustomConfig, DistillationOnlyConfig
from strop.config.schema.distillation import (
    DistillationConfig,
    DistillationRewardConfig,
    SampledJsdConfig,
    SampledKlLossConfig,
)
from strop.config.schema.group_baselines import GrpoConfig
from strop.types import GlobalCounts, TokenOutputs
from tests.algorithms.batches import make_batch

TEACHER = {"path": "teacher"}


def only(**section: Any) -> DistillationOnlyConfig:
    return DistillationOnlyConfig.model_validate({"distillation": {"teachers": [TEACHER], **section}})


def test_the_reward_is_the_log_ratio_towards_the_teacher() -> None:
    """p = 1/2 and q = 1/4, 3/4: the advantage log q - log p, bounded, times the coefficient."""
    policy, teacher = torch.tensor([0.5, 0.5]).log(), torch.tensor([0.25, 0.75]).log()
    section = DistillationRewardConfig(coef=2.0, max_divergence=0.5)
    divergence = sampled_divergence(policy, teacher, section.divergence)
    assert divergence.tolist() == pytest.approx([math.log(2), -math.log(1.5)])
    assert distillation_advantages(divergence, section).tolist() == pytest.approx([-1.0, 2 * math.log(1.5)])


def test_the_term_of_the_jsd() -> None:
    """p = 1/2, q = 1/4, beta = 1/4, m = 7/16: 1/4 1/4 log(4/7) + 3/4 1/2 log(8/7)."""
    found = sampled_divergence(
        torch.tensor([math.log(0.5)]), torch.tensor([math.log(0.25)]), SampledJsdConfig(beta=0.25)
    )
    assert found.item() == pytest.approx(math.log(4 / 7) / 16 + 3 / 8 * math.log(8 / 7))


def test_a_bounded_divergence_has_no_gradient_beyond_its_bound() -> None:
    values = torch.tensor([-3.0, -1.0, 1.0, 3.0], requires_grad=True)
    bounded = bound_divergence(values, 2.0)
    assert bounded.tolist() == [-2.0, -1.0, 1.0, 2.0]
    (gradient,) = torch.autograd.grad(bounded.sum(), values)
    assert gradient.tolist() == [0.0, 1.0, 1.0, 0.0]
    assert bound_divergence(values, None) is values


def test_alone_the_tasks_reward_gives_no_advantage() -> None:
    scored = RolloutBatch(torch.tensor([1.0, 0.0]), torch.tensor([0, 1]), torch.tensor([2, 3]))
    advantages = registry.compute_advantages(only(reward={}), scored, max_response_tokens=8)
    assert advantages.tolist() == [0.0] * 5


@pytest.mark.parametrize("divergence", ["reverse_kl", "sampled_kl"])
def test_the_loss_is_the_policy_loss_plus_the_divergence(divergence: str) -> None:
    """Both aggregated in the same way; a token beyond the bound counts as the bound."""
    batch = make_batch([(2, 3), (1, 4)])
    logprobs = torch.randn(len(batch.loss_mask)) * 0.3 - 1
    each = torch.linspace(0.1, 3, len(batch.loss_mask))
    object.__setattr__(batch, "teacher_logprobs", torch.randn(len(batch.loss_mask)) - 1)
    outputs = TokenOutputs(logprobs, torch.ones(len(each)), None, each)
    if divergence == "sampled_kl":
        assert batch.teacher_logprobs is not None
        each = sampled_divergence(logprobs, batch.teacher_logprobs, SampledKlLossConfig())
    counts = GlobalCounts(tokens=7, sequences=2)
    section = {"teachers": [TEACHER], "loss": {"divergence": divergence, "coef": 0.5, "max_divergence": 1.0}}
    base = GrpoConfig(aggregation="seq-mean-token-mean")
    plain = registry.make_loss_fn(base, max_response_tokens=8)(batch, outputs, counts)
    both = base.model_copy(update={"distillation": DistillationConfig.model_validate(section)})
    found = registry.make_loss_fn(both, max_response_tokens=8)(batch, outputs, counts)
    means = [each[2:5].clamp(max=1).mean() * batch.weight[0], each[6:].clamp(max=1).mean() * batch.weight[1]]
    expected = 0.5 * sum(means) / 2
    assert found.metrics["distillation_loss"] == pytest.approx(float(expected))
    assert found.loss == pytest.approx(float(plain.loss + expected))
    mean = each[batch.loss_mask].sum() / 7
    assert found.metrics["distillation_loss/divergence"] == pytest.approx(float(mean))


def test_what_the_section_needs() -> None:
    for section, logprobs, old, vocabulary in (
        ({"reward": {}}, True, True, False),
        ({"loss": {"divergence": "sampled_kl"}}, True, False, False),
        ({"loss": {}}, False, False, True),
        ({"loss": {}, "reward": {}}, True, True, True),
    ):
        config = only(**section)
        assert requirements.needs_teacher_logprobs(config) == logprobs
        assert requirements.reward_reads_logprobs(config) == old
        assert (requirements.teacher_divergence(config) is not None) == vocabulary
        assert not requirements.needs_reference_model(config)


def test_tasks_are_divided_among_teachers_by_their_source() -> None:
    teachers = [TEACHER | {"sources": ["math", "gsm8k"]}, TEACHER]
    section = DistillationConfig.model_validate({"teachers": teachers, "reward": {}})
    assert [section.teacher_of(source) for source in ("gsm8k", "code", "")] == [0, 1, 1]
    alone = DistillationConfig.model_validate({"teachers": teachers[:1], "reward": {}})
    assert alone.teacher_of("code") is None


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"teachers": [TEACHER]}, "needs `loss`, `reward`, or both"),
        ({"teachers": [TEACHER, TEACHER], "reward": {}}, "two teachers have no `sources`"),
        ({"teachers": [TEACHER | {"sources": ["a"]}] * 2, "reward": {}}, "list the source 'a'"),
        ({"teachers": [], "reward": {}}, "at least 1"),
        ({"teachers": [TEACHER], "loss": {"divergence": {"type": "sampled_kl", "estimator": "k1"}}}, "'k2'"),
        ({"teachers": [TEACHER], "reward": {"divergence": "forward_kl"}}, "sampled_kl"),
    ],
)
def test_faults_of_the_section(section: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        DistillationConfig.model_validate(section)


def test_what_distillation_alone_and_a_custom_loss_refuse() -> None:
    distillation = {"teachers": [TEACHER], "reward": {}}
    with pytest.raises(ValidationError, match="kl_reward changes the reward, which distillation does not"):
        DistillationOnlyConfig.model_validate({"distillation": distillation, "kl_reward": {}})
    with pytest.raises(ValidationError, match=r"distillation\.loss is a term of the built-in loss"):
        CustomConfig.model_validate(
            {"loss": "file.py:f", "distillation": {"teachers": [TEACHER], "loss": {}}}
        )
