"""Tokens of an update that the covariance losses treat apart from the others."""

from __future__ import annotations

from collections.abc import Sequence

from strop.algorithms.losses.covariance_losses import select_tokens
from strop.config.schema.algorithm import RolloutAlgorithmConfig
from strop.config.schema.policy_loss import ClipCovLossConfig, KlCovLossConfig
from strop.run.optimize.advantage_inputs import gather_targets, split_by_experience
from strop.types import BoolArray, Experience, FloatArray


def select_update_tokens(
    algorithm: RolloutAlgorithmConfig,
    rollouts: Sequence[Experience],
    advantages: Sequence[FloatArray],
    old_logprobs: Sequence[FloatArray] | None,
    *,
    seed: int,
) -> list[BoolArray] | None:
    """[L] of each rollout of an update: the tokens of `clip_cov` and `kl_cov`; None for other losses.

    Args:
        algorithm: the section `algorithm`.
        rollouts: the experiences of the update.
        advantages: [L] of each.
        old_logprobs: [L] of each, under the weights at the start of the step.
        seed: seed of the random choice among the tokens of high covariance.
    """
    loss = algorithm.policy_loss
    if not isinstance(loss, ClipCovLossConfig | KlCovLossConfig):
        return None
    assert old_logprobs is not None
    selected = select_tokens(
        loss, gather_targets(old_logprobs, rollouts), gather_targets(advantages, rollouts), seed=seed
    )
    return [each > 0 for each in split_by_experience(selected, rollouts)]
