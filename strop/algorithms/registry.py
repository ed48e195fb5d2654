"""Registry of algorithms: the functions that an `algorithm` section selects; a new algorithm is a new case here."""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

import torch

from strop.algorithms import custom
from strop.algorithms.advantages import (
    AdvantageEstimate,
    asymre,
    gae,
    gdpo,
    gigpo,
    gpg,
    grpo,
    grpo_passk,
    opmd_log_avg_exp,
    opo,
    optimal_token_baseline,
    overlong_penalty,
    preferred,
    raft,
    reinforce_plus_plus,
    reinforce_plus_plus_baseline,
    remax,
    rloo,
    whiten,
)
from strop.algorithms.kl import AdaptiveKlController, FixedKlController, KlController
from strop.algorithms.losses.policy_objective import PolicyObjective
from strop.algorithms.losses.preference_losses import PreferenceLoss, UnpairedLoss
from strop.algorithms.losses.reward_modeling import RewardModelLoss
from strop.algorithms.losses.sft import DistilledMixLoss, MixedLoss, SftLoss
from strop.algorithms.process_rewards import prime
from strop.algorithms.rollout_batch import RolloutBatch
from strop.config.schema.algorithm import (
    AlgorithmConfig,
    AsymReConfig,
    CriticFreeConfig,
    CustomConfig,
    DistillationOnlyConfig,
    GdpoConfig,
    GigpoConfig,
    GpgConfig,
    GrpoConfig,
    GrpoPasskConfig,
    MeanBaselineConfig,
    MixConfig,
    OnlineDpoConfig,
    OpmdConfig,
    OpoConfig,
    OptimalTokenBaselineConfig,
    PpoConfig,
    PrimeConfig,
    RaftConfig,
    ReinforceConfig,
    ReinforcePlusPlusBaselineConfig,
    ReinforcePlusPlusConfig,
    RemaxConfig,
    RlooConfig,
    RolloutAlgorithmConfig,
    SelfPlayConfig,
    SftConfig,
)
from strop.config.schema.preference import (
    BcoConfig,
    CpoConfig,
    DpoConfig,
    KtoConfig,
    OrpoConfig,
    RewardModelingConfig,
)
from strop.protocols import LossFn


def compute_advantages(
    config: CriticFreeConfig, scored: RolloutBatch, *, max_response_tokens: int
) -> torch.Tensor:
    """[K] float32: advantages of all targets, in the order of `scored`.

    `max_response_tokens` is `data.max_response_tokens`, which the overlong penalty refers to.
    """
    scored = _with_overlong_penalty(config, scored, max_response_tokens)
    match config:
        case ReinforcePlusPlusConfig():
            return reinforce_plus_plus(scored, gamma=config.gamma).float()
        case ReinforcePlusPlusBaselineConfig():
            return reinforce_plus_plus_baseline(scored).float()
        case OptimalTokenBaselineConfig():
            return optimal_token_baseline(scored).float()
        case GdpoConfig():
            return gdpo(
                scored,
                weights=config.part_weights,
                divide_by_std=config.divide_by_std,
                epsilon=config.std_epsilon,
            ).float()
        case GigpoConfig():
            return gigpo(
                scored,
                turn_weight=config.turn_weight,
                gamma=config.gamma,
                divide_by_std=config.divide_by_std,
                epsilon=config.std_epsilon,
                states_over=config.states_over,
            ).float()
        case RemaxConfig():
            return remax(scored).float()
        case PrimeConfig():
            return prime(scored, outcome_coef=config.outcome_coef, process_coef=config.process_coef).float()
        case CustomConfig(advantages=str(function)):
            return custom.compute_custom_advantages(function, scored).float()
        case _:
            return scored.expand_to_tokens(_rollout_advantages(config, scored)).float()


def compute_advantages_and_returns(
    config: PpoConfig, scored: RolloutBatch, values: torch.Tensor, *, max_response_tokens: int
) -> AdvantageEstimate:
    """Advantages, and the targets of the critic whose estimates are `values` [K]; float32."""
    found = gae(
        _with_overlong_penalty(config, scored, max_response_tokens),
        values,
        gamma=config.gamma,
        lam=config.lam,
    )
    whitened = whiten(found.advantages) if config.whiten else found.advantages
    return AdvantageEstimate(whitened.float(), found.returns.float())


def _with_overlong_penalty(
    config: RolloutAlgorithmConfig, scored: RolloutBatch, max_response_tokens: int
) -> RolloutBatch:
    """The batch with the overlong penalty added to its rewards, where the section has one."""
    if config.overlong_penalty is None:
        return scored
    penalty = overlong_penalty(
        scored.tokens,
        max_response_tokens=max_response_tokens,
        buffer_tokens=config.overlong_penalty.buffer_tokens,
        factor=config.overlong_penalty.factor,
    )
    return replace(scored, rewards=scored.rewards + penalty)


def _rollout_advantages(
    config: GrpoConfig
    | GrpoPasskConfig
    | RlooConfig
    | OpoConfig
    | GpgConfig
    | OpmdConfig
    | ReinforceConfig
    | OnlineDpoConfig
    | RaftConfig
    | AsymReConfig
    | SelfPlayConfig
    | DistillationOnlyConfig
    | MixConfig
    | CustomConfig,
    scored: RolloutBatch,
) -> torch.Tensor:
    """[N] float64: advantages that are equal for all targets of a rollout."""
    scores, group = scored.penalized_rewards(), scored.group
    match config:
        case GrpoConfig():
            advantages = grpo(
                scores,
                group,
                divide_by_std=config.divide_by_std,
                std_over=config.std_over,
                epsilon=config.std_epsilon,
            )
            return advantages / _sequences(scored) if config.divide_by_sequences else advantages
        case MixConfig():
            return grpo(scores, group, divide_by_std=config.divide_by_std, epsilon=config.std_epsilon)
        case CustomConfig():
            return grpo(scores, group)
        case GrpoPasskConfig():
            k = config.k or config.rollouts_per_task
            return grpo_passk(
                scores, group, k=k, divide_by_std=config.divide_by_std, epsilon=config.std_epsilon
            )
        case RlooConfig():
            return rloo(scores, group)
        case OpoConfig():
            return opo(scores, group, scored.tokens)
        case GpgConfig():
            return gpg(scores, group, scale=config.scale)
        case ReinforceConfig():
            return scores.double()
        case RaftConfig():
            return raft(scored.rewards, min_reward=config.min_reward)
        case OnlineDpoConfig():
            return preferred(scores, group, beta=config.beta, train_ties=config.train_ties)
        case DistillationOnlyConfig():
            return torch.zeros_like(scores, dtype=torch.float64)
        case AsymReConfig():
            return asymre(scores, group, baseline_shift=config.baseline_shift)
        case SelfPlayConfig():
            compared = torch.zeros_like(group) if config.baseline_over == "step" else group
            return opmd_log_avg_exp(scores, compared, tau=1 / config.eta)
        case OpmdConfig():
            if isinstance(config.baseline, MeanBaselineConfig):
                return grpo(scores, group, divide_by_std=False)
            return opmd_log_avg_exp(scores, group, tau=config.baseline.tau)
        case _:
            assert_never(config)


def _sequences(scored: RolloutBatch) -> torch.Tensor:
    if scored.sequences is None:
        raise ValueError("algorithm.divide_by_sequences needs RolloutBatch.sequences, which is missing")
    return scored.sequences


def make_loss_fn(config: AlgorithmConfig, *, max_response_tokens: int) -> LossFn:
    """The loss of an algorithm. `max_response_tokens` is `data.max_response_tokens`."""
    match config:
        case SftConfig():
            return SftLoss(config.token_weight)
        case DpoConfig() | CpoConfig() | OrpoConfig():
            return PreferenceLoss(config)
        case KtoConfig() | BcoConfig():
            return UnpairedLoss(config)
        case RewardModelingConfig():
            return RewardModelLoss(config)
        case MixConfig():
            objective = PolicyObjective(config, max_response_tokens)
            return MixedLoss(config.mu, objective, config.expert_weight)
        case DistillationOnlyConfig(demonstration_fraction=fraction) if fraction > 0:
            assert config.distillation.loss is not None
            objective = PolicyObjective(config, max_response_tokens)
            return DistilledMixLoss(fraction, objective, config.distillation.loss)
        case CustomConfig(loss=str(function)):
            return custom.CustomLoss(function)
        case _:
            return PolicyObjective(config, max_response_tokens)


def make_kl_controller(config: RolloutAlgorithmConfig, coef: float | None = None) -> KlController | None:
    """The controller of the KL penalty in the reward; None without such a penalty.

    `coef` is the coefficient of a resumed run's checkpoint; None starts at the run file's.
    """
    if config.kl_reward is None:
        return None
    start = config.kl_reward.coef if coef is None else coef
    adaptive = config.kl_reward.adaptive
    return (
        FixedKlController(start)
        if adaptive is None
        else AdaptiveKlController(start, adaptive.target_kl, adaptive.horizon)
    )
