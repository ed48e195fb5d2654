"""Requirements of an `algorithm` section: log-probs, divergences, a reference model; the effect of zero advantages."""

from __future__ import annotations

from strop.algorithms.losses.policy_losses import vanishes_at_zero_advantage as policy_loss_vanishes
from strop.config.schema.algorithm import (
    AlgorithmConfig,
    CustomConfig,
    OfflineAlgorithmConfig,
    OptimalTokenBaselineConfig,
    RemaxConfig,
    RolloutAlgorithmConfig,
)
from strop.config.schema.distillation import DistillationConfig, DivergenceConfig, SampledKlLossConfig
from strop.config.schema.policy_loss import ClipCovLossConfig, KlCovLossConfig
from strop.config.schema.preference import DpoConfig, KtoConfig


def needs_reference_model(config: AlgorithmConfig) -> bool:
    """Whether the engine must keep a reference model, to compute its log-probs in every step.

    DPO, KTO and BCO compute the reference's log-probs of the whole dataset before the first update. KTO's estimate of
    the divergence, over other pairs of prompts and responses in every epoch, needs the model afterwards, and so does a
    reference that changes.
    """
    if isinstance(config, DpoConfig):
        return config.reference_sync is not None
    if isinstance(config, KtoConfig):
        return config.estimates_kl
    if isinstance(config, OfflineAlgorithmConfig):
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
    if isinstance(config, OfflineAlgorithmConfig):
        return False
    return config.kl_loss is not None and config.kl_loss.estimator == "full"


def distillation_of(config: AlgorithmConfig) -> DistillationConfig | None:
    """The section of the teachers; None for an algorithm without one."""
    return None if isinstance(config, OfflineAlgorithmConfig) else config.distillation


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
    return not isinstance(config, OfflineAlgorithmConfig)
