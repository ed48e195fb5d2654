"""Tokens of an update that its policy loss treats apart from the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from strop.algorithms.losses.covariance_losses import select_tokens
from strop.algorithms.losses.second_moment import excess_tokens
from strop.config.schema.algorithm import RolloutAlgorithmConfig
from strop.config.schema.policy_loss import ClipCovLossConfig, KlCovLossConfig, M2poLossConfig
from strop.run.optimize.advantage_inputs import gather_targets, split_by_experience, zeros_for
from strop.types import BoolArray, Experience, FloatArray


def select_update_tokens(
    algorithm: RolloutAlgorithmConfig,
    rollouts: Sequence[Experience],
    advantages: Sequence[FloatArray],
    old_logprobs: Sequence[FloatArray] | None,
    current_logprobs: Callable[[Sequence[Experience]], Sequence[FloatArray]],
    *,
    seed: int,
) -> list[BoolArray] | None:
    """[L] of each rollout of an update: the tokens of `clip_cov`, `kl_cov` and `m2po`; None for other losses.

    Args:
        algorithm: the section `algorithm`.
        rollouts: the experiences of the update.
        advantages: [L] of each.
        old_logprobs: [L] of each, under the old policy; None where it is the current one.
        current_logprobs: computes [L] of each of some rollouts, under the current weights.
        seed: seed of the random choice among the tokens of high covariance.
    """
    loss = algorithm.policy_loss
    match loss:
        case ClipCovLossConfig() | KlCovLossConfig():
            assert old_logprobs is not None
            old = gather_targets(old_logprobs, rollouts)
            selected = select_tokens(loss, old, gather_targets(advantages, rollouts), seed=seed)
        case M2poLossConfig():
            flat = gather_targets(advantages, rollouts)
            ratio = torch.zeros_like(flat)
            if old_logprobs is not None:
                # A token whose advantage is 0 is not selected, whatever its ratio.
                moving = [i for i, e in enumerate(rollouts) if advantages[i][e.loss_mask].any()]
                differences = [zeros_for(each) for each in rollouts]
                current = current_logprobs([rollouts[i] for i in moving]) if moving else []
                for i, now in zip(moving, current, strict=True):
                    differences[i] = now - old_logprobs[i]
                ratio = gather_targets(differences, rollouts)
            selected = excess_tokens(ratio, flat, max_second_moment=loss.max_second_moment)
        case _:
            return None
    return [each > 0 for each in split_by_experience(selected, rollouts)]
