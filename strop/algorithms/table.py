"""Which functions an algorithm's section means. A new algorithm is a new case here."""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

import torch

from strop.algorithms.advantages import gpg, grpo, grpo_passk, opmd_log_avg_exp, opo, rloo
from strop.algorithms.kl import AdaptiveCoef, FixedCoef, KlController
from strop.algorithms.objective import Objective
from strop.algorithms.preference_losses import DpoLoss
from strop.algorithms.returns import (
    Estimate,
    gae,
    reinforce_plus_plus,
    reinforce_plus_plus_baseline,
    remax,
    whiten,
)
from strop.algorithms.scored import Scored
from strop.algorithms.shaping import overlong_penalty
from strop.algorithms.supervised import MixedLoss, supervised_loss
from strop.config.schema.algorithm import (
    Algorithm,
    Dpo,
    Gpg,
    Grpo,
    GrpoPassk,
    MeanBaseline,
    Mix,
    Opmd,
    Opo,
    Ppo,
    ReinforcePlusPlus,
    ReinforcePlusPlusBaseline,
    Remax,
    Rloo,
    RolloutAlgorithm,
    Sft,
    WithoutCritic,
)
from strop.protocols import LossFn


def advantages(config: WithoutCritic, scored: Scored, *, max_response_tokens: int) -> torch.Tensor:
    """[K] float32: of every target of every rollout, in the order that `scored` has them.

    `max_response_tokens` is `data.max_response_tokens`, by which the overlong penalty is counted.
    """
    scored = _shaped(config, scored, max_response_tokens)
    match config:
        case ReinforcePlusPlus():
            return reinforce_plus_plus(scored, gamma=config.gamma).float()
        case ReinforcePlusPlusBaseline():
            return reinforce_plus_plus_baseline(scored).float()
        case Remax():
            return remax(scored).float()
        case _:
            return scored.spread(_of_answers(config, scored)).float()


def estimate(config: Ppo, scored: Scored, values: torch.Tensor, *, max_response_tokens: int) -> Estimate:
    """Advantages as above, and what the critic, which said `values` [K], should have said; float32."""
    found = gae(_shaped(config, scored, max_response_tokens), values, gamma=config.gamma, lam=config.lam)
    whitened = whiten(found.advantages) if config.whiten else found.advantages
    return Estimate(whitened.float(), found.returns.float())


def _shaped(config: RolloutAlgorithm, scored: Scored, max_response_tokens: int) -> Scored:
    """With the overlong penalty in the rewards, where there is one."""
    if config.overlong_penalty is None:
        return scored
    penalty = overlong_penalty(
        scored.tokens,
        max_response_tokens=max_response_tokens,
        buffer_tokens=config.overlong_penalty.buffer_tokens,
        factor=config.overlong_penalty.factor,
    )
    return replace(scored, rewards=scored.rewards + penalty)


def _of_answers(config: Grpo | GrpoPassk | Rloo | Opo | Gpg | Opmd | Mix, scored: Scored) -> torch.Tensor:
    """[N] float64: the same for all targets of a rollout."""
    scores, group = scored.scores(), scored.group
    match config:
        case Grpo() | Mix():
            return grpo(scores, group, divide_by_std=config.divide_by_std, epsilon=config.std_epsilon)
        case GrpoPassk():
            k = config.k or config.rollouts_per_task
            return grpo_passk(
                scores, group, k=k, divide_by_std=config.divide_by_std, epsilon=config.std_epsilon
            )
        case Rloo():
            return rloo(scores, group)
        case Opo():
            return opo(scores, group, scored.tokens)
        case Gpg():
            return gpg(scores, group)
        case Opmd():
            if isinstance(config.baseline, MeanBaseline):
                return grpo(scores, group, divide_by_std=False)
            return opmd_log_avg_exp(scores, group, tau=config.baseline.tau)
        case _:
            assert_never(config)


def loss_fn(config: Algorithm, *, max_response_tokens: int) -> LossFn:
    """What an update minimises. `max_response_tokens` is `data.max_response_tokens`."""
    match config:
        case Sft():
            return supervised_loss
        case Dpo():
            return DpoLoss(config)
        case Mix():
            return MixedLoss(config.mu, Objective(config, max_response_tokens))
        case _:
            return Objective(config, max_response_tokens)


def kl_controller(config: RolloutAlgorithm, coef: float | None = None) -> KlController | None:
    """The coefficient of the KL penalty in the reward; None where there is no such penalty.

    `coef` is what a resumed run had come to; without it, the run file's.
    """
    if config.kl_reward is None:
        return None
    start = config.kl_reward.coef if coef is None else coef
    adaptive = config.kl_reward.adaptive
    return FixedCoef(start) if adaptive is None else AdaptiveCoef(start, adaptive.target_kl, adaptive.horizon)


def needs_reference(config: Algorithm) -> bool:
    """Whether the engine must keep a reference, for a step's log-probs by it.

    DPO's are those of the whole dataset, computed once, before the first update: it keeps none.
    """
    if isinstance(config, Sft | Dpo):
        return False
    return config.kl_loss is not None or config.kl_reward is not None


def needs_reference_logprobs(config: RolloutAlgorithm) -> bool:
    """Whether a divergence is estimated from the sampled tokens; over the whole vocabulary it is not."""
    penalties = (config.kl_loss, config.kl_reward)
    return any(penalty is not None and penalty.estimator != "full" for penalty in penalties)


def measures_divergence(config: Algorithm) -> bool:
    """Whether the loss takes `TokenOutputs.divergence`."""
    if isinstance(config, Sft | Dpo):
        return False
    return config.kl_loss is not None and config.kl_loss.estimator == "full"


def needs_greedy_answer(config: Algorithm) -> bool:
    """Whether `Scored.baselines` must be there."""
    return isinstance(config, Remax)


def measures_entropy(config: Algorithm) -> bool:
    """Whether the loss takes `TokenOutputs.entropy`: as a metric, and as a bonus where that is asked for."""
    return not isinstance(config, Sft | Dpo)
