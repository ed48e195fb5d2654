"""Clip-Cov and KL-Cov: the selection and the losses by hand."""

from __future__ import annotations

import math

import pytest
import torch
from pydantic import ValidationError

from strop.algorithms.losses.aggregation import TargetTokens
from strop.algorithms.losses.covariance_losses import select_tokens
from strop.algorithms.losses.policy_losses import log_ratio, policy_loss_terms
from strop.config.schema.policy_loss import (
    ClipCovLossConfig,
    KlCovLossConfig,
    PolicyLossConfig,
)
from tests.algorithms.batches import make_batch

# Means -2 and 0: the covariances are 3, -1, -2, 2, 0 and 0.
LOGPROBS = torch.tensor([-0.5, -1.0, -3.0, -3.0, -2.0, -2.5])
ADVANTAGES = torch.tensor([2.0, -1.0, 2.0, -2.0, -1.0, 0.0])


def test_kl_cov_takes_the_largest_covariances() -> None:
    def chosen(fraction: float) -> list[bool]:
        return select_tokens(KlCovLossConfig(token_fraction=fraction), LOGPROBS, ADVANTAGES, seed=0).tolist()

    assert chosen(2 / 6) == [True, False, False, True, False, False]
    assert chosen(1e-6) == [True, *[False] * 5]  # at least one
    assert chosen(1.0) == [True] * 6


def test_clip_cov_takes_some_between_its_bounds() -> None:
    config = ClipCovLossConfig(token_fraction=1.0, covariance_low=-1.5, covariance_high=2.5)
    between = [False, True, False, True, True, True]
    assert select_tokens(config, LOGPROBS, ADVANTAGES, seed=0).tolist() == between

    one = config.model_copy(update={"token_fraction": 0.2})
    found = [select_tokens(one, LOGPROBS, ADVANTAGES, seed=seed).nonzero().tolist() for seed in range(20)]
    assert all(len(each) == 1 and between[each[0][0]] for each in found)
    assert len({each[0][0] for each in found}) > 1
    assert found[0] == select_tokens(one, LOGPROBS, ADVANTAGES, seed=0).nonzero().tolist()

    none = config.model_copy(update={"covariance_low": 10.0, "covariance_high": 20.0})
    assert not select_tokens(none, LOGPROBS, ADVANTAGES, seed=0).any()


def test_the_bounds_of_clip_cov_are_in_order() -> None:
    with pytest.raises(ValidationError, match=r"covariance_low \(5\.0\) is not below"):
        ClipCovLossConfig(covariance_low=5.0)


@pytest.mark.parametrize(
    ("config", "loss", "gradient"),
    [
        # Ratios 2, 1/2, 2 and 1, of which the second and the third are selected; A = 1.
        (ClipCovLossConfig(), [-1.2, 0.0, 0.0, -1.0], [0.0, 0.0, 0.0, -1.0]),
        (
            KlCovLossConfig(kl_coef=0.5),
            [-2.0, -0.5 + 0.5 * math.log(2), -2.0 + 0.5 * math.log(2), -1.0],
            [-2.0, -1.0, -1.5, -1.0],
        ),
    ],
    ids=["clip_cov", "kl_cov"],
)
def test_losses_by_hand(config: PolicyLossConfig, loss: list[float], gradient: list[float]) -> None:
    batch = make_batch([(1, 4)])
    batch.selected[:] = torch.tensor([False, False, True, True, False])  # type: ignore[index]
    logprobs = torch.tensor([2.0, 0.5, 2.0, 1.0]).log().requires_grad_()
    ratio = log_ratio(logprobs, torch.zeros(4))
    terms = policy_loss_terms(config, logprobs, ratio, torch.ones(4), TargetTokens.of(batch))
    assert terms.loss.tolist() == pytest.approx(loss)
    assert torch.autograd.grad(terms.loss.sum(), logprobs)[0].tolist() == pytest.approx(gradient)


def test_a_missing_selection_is_reported() -> None:
    targets = TargetTokens.of(make_batch([(1, 2)]))
    without = TargetTokens(
        targets.index, targets.segment, targets.tokens, targets.weight, targets.num_segments
    )
    with pytest.raises(ValueError, match="selected tokens"):
        policy_loss_terms(KlCovLossConfig(), torch.zeros(2), torch.zeros(2), torch.zeros(2), without)
