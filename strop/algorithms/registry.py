"""Registry of algorithms: the functions that an `algorithm` section selects; a new algorithm is a new case here."""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

import torch

from strop.algorithms import custom
from strop.algorithms.advantages import (
    asymre,
    gpg,
    grpo,
    grpo_passk,
    opmd_log_avg_exp,
    opo,
    preferred,
    raft,
    rloo,
)
from strop.algorithms.kl import AdaptiveKlController, FixedKlController, KlController
from strop.algorithms.losses.distilled_mix import DistilledMixLoss
from strop.algorithms.losses.policy_losses import vanishes_at_zero_advantage as policy_loss_vanishes
from strop.algorithms.losses.policy_objective import PolicyObjective
from strop.algorithms.losses.preference_losses import DpoLoss
from strop.algorithms.losses.sft import MixedLoss, SftLoss
from strop.algorithms.process_rewards import prime
from strop.algorithms.reward_shaping import overlong_penalty
from strop.algorithms.rollout_batch import RolloutBatch
from strop.algorithms.token_advantages import (
    AdvantageEstimate,
    gae,
    gdpo,
    optimal_token_baseline,
    reinforce_plus_plus,
    reinforce_plus_plus_baseline,
    remax,
    whiten,
)
from strop.algorithms.turn_advantages import gigpo
from strop.config.schema.algorithm import (
    AlgorithmConfig,
    CriticFreeConfig,
    CustomConfig,
    DistillationOnlyConfig,
    DpoConfig,
    OnlineDpoConfig,
    PpoConfig,
    PrimeConfig,
    RaftConfig,
    ReinforceConfig,
    ReinforcePlusPlusBaselineConfig,
    ReinforcePlusPlusConfig,
    RemaxConfig,
    RolloutAlgorithmConfig,
    SelfPlayConfig,
    SftConfig,
)
from strop.config.schema.distillation import DistillationConfig, DivergenceConfig, SampledKlLossConfig
from strop.config.schema.group_baselines import (
    AsymReConfig,
    GdpoConfig,
    GigpoConfig,
    GpgConfig,
    GrpoConfig,
    GrpoPasskConfig,
    MeanBaselineConfig,
    MixConfig,
    OpmdConfig,
    OpoConfig,
    OptimalTokenBaselineConfig,
    RlooConfig,
)
from strop.config.schema.policy_loss import ClipCovLossConfig, KlCovLossConfig
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
        case DpoConfig():
            return DpoLoss(config)
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


def needs_reference_model(config: AlgorithmConfig) -> bool:
    """Whether the engine must keep a reference model, to compute its log-probs in every step.

    DPO computes the reference's log-probs of the whole dataset before the first update, and keeps no model.
    """
    if isinstance(config, SftConfig | DpoConfig):
        return False
    if isinstance(config, CustomConfig) and config.ref_logprobs:
        return True
    return config.kl_loss is not None or config.kl_reward is not None


def needs_reference_logprobs(config: RolloutAlgorithmConfig) -> bool:
    """Whether the reference's log-probs of sampled tokens are needed; the `full` estimator needs none."""
    if isinstance(config, CustomConfig) and config.ref_logprobs:
        return True
    penalties = (config.kl_loss, config.kl_reward)
    return any(penalty is not None and penalty.estimator != "full" for penalty in penalties)


def needs_start_logprobs(config: RolloutAlgorithmConfig) -> bool:
    """Whether the old policy's log-probs of all experiences are needed before the step's first update."""
    selects = isinstance(config.policy_loss, ClipCovLossConfig | KlCovLossConfig)
    if selects or config.entropy_filter is not None or isinstance(config, OptimalTokenBaselineConfig):
        return True
    correction = config.importance_correction
    rejects = bool(config.rejection) and config.old_policy == "trainer"
    return rejects or (correction is not None and correction.normalize)


def needs_divergence(config: AlgorithmConfig) -> bool:
    """Whether the loss reads `TokenOutputs.divergence`."""
    if isinstance(config, SftConfig | DpoConfig):
        return False
    return config.kl_loss is not None and config.kl_loss.estimator == "full"


def distillation_of(config: AlgorithmConfig) -> DistillationConfig | None:
    """The section of the teachers; None for an algorithm without one."""
    return None if isinstance(config, SftConfig | DpoConfig) else config.distillation


def teacher_divergence(config: AlgorithmConfig) -> DivergenceConfig | None:
    """The divergence over the vocabulary that the loss reads as `TokenOutputs.teacher_divergence`; None for none."""
    section = distillation_of(config)
    if section is None or section.loss is None or isinstance(section.loss.divergence, SampledKlLossConfig):
        return None
    return section.loss.divergence


def needs_teacher_logprobs(config: RolloutAlgorithmConfig) -> bool:
    """Whether the teachers' log-probs of sampled tokens are needed; divergences over the vocabulary need none."""
    section = config.distillation
    return section is not None and (section.reward is not None or teacher_divergence(config) is None)


def reward_reads_logprobs(config: RolloutAlgorithmConfig) -> bool:
    """Whether advantages depend on the policy's log-probs of all sampled tokens at the start of the step."""
    if config.kl_reward is not None and config.kl_reward.estimator != "full":
        return True
    return config.distillation is not None and config.distillation.reward is not None


def vanishes_at_zero_advantage(config: RolloutAlgorithmConfig) -> bool:
    """Whether a rollout whose advantages are all 0 adds nothing to the loss and its gradient.

    A divergence, an entropy bonus and a user's own loss function do not depend on advantages alone.
    """
    from_teacher = config.distillation is not None and config.distillation.loss is not None
    others = config.kl_loss is not None or config.entropy_coef > 0 or from_teacher
    return ratio_vanishes_at_zero_advantage(config) and not others


def ratio_vanishes_at_zero_advantage(config: RolloutAlgorithmConfig) -> bool:
    """Whether the ratio to the old policy adds nothing to the loss and its gradient in a rollout whose advantages are
    all 0: a divergence that is not weighted by it, an entropy bonus and a teacher's loss do not read it."""
    if isinstance(config, CustomConfig) and config.loss is not None:
        return False
    weighted = config.kl_loss is not None and config.kl_loss.weight_by_ratio
    return policy_loss_vanishes(config.policy_loss) and not weighted


def needs_greedy_baseline(config: AlgorithmConfig) -> bool:
    """Whether the algorithm reads `RolloutBatch.baselines`."""
    return isinstance(config, RemaxConfig)


def needs_entropy(config: AlgorithmConfig) -> bool:
    """Whether the loss reads `TokenOutputs.entropy`, as a metric and for the entropy bonus."""
    return not isinstance(config, SftConfig | DpoConfig)
