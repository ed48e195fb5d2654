"""`algorithm`: advantages and losses, one class for each algorithm and policy loss."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, field_validator

from strop.config.schema.base import Section, type_shorthand
from strop.config.schema.critic import CriticConfig
from strop.config.schema.distillation import DistillationConfig
from strop.config.schema.off_policy import ImportanceCorrectionConfig, RejectionRuleConfig
from strop.config.schema.policy_loss import ClippedLossConfig, GpgLossConfig, OpmdLossConfig, PolicyLossConfig

SampledKl = Literal["k1", "abs", "k2", "k3"]
K2GradientKl = Literal["k1+", "abs+", "k3+"]
KlEstimator = Literal[SampledKl, "full"]
KlLossEstimator = Literal[KlEstimator, K2GradientKl]
Aggregation = Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]


class KlLossConfig(Section):
    """KL penalty in the loss, relative to the reference, which is the initial model."""

    estimator: KlLossEstimator = "k3"
    """Estimator of the divergence from sampled tokens (joschu.net/blog/kl-approx.html); with `+`, its value with
    the gradient of `k2`; `full` is exact, over the whole vocabulary, and requires a forward pass of the reference in
    every update."""
    coef: float = Field(0.001, ge=0)
    """Coefficient of the penalty."""
    weight_by_ratio: bool = False
    """Multiply the estimate of each token by its ratio to the old policy, so that the gradient is that of
    KL(policy || reference) for tokens of the old policy (arXiv 2512.02556); `k1` and `k3` only."""
    max_ratio: float | None = Field(None, gt=0)
    """Maximum ratio of `weight_by_ratio`; null for no maximum."""

    def faults(self) -> Iterator[str]:
        """Faults between the fields."""
        if self.weight_by_ratio and self.estimator not in ("k1", "k3"):
            yield (
                f"weight_by_ratio corrects the gradient of the estimators k1 and k3, and estimator is "
                f"{self.estimator}; write estimator: k3, or take weight_by_ratio out"
            )
        if self.max_ratio is not None and not self.weight_by_ratio:
            yield "max_ratio has no effect without weight_by_ratio: true; write it, or take max_ratio out"


class AdaptiveKlConfig(Section):
    """Controller of the penalty's coefficient: after each step it moves the divergence towards a target
    (arXiv 1909.08593)."""

    target_kl: float = Field(0.1, gt=0)
    """Target divergence, in nats per token, by the penalty's estimator."""
    horizon: int = Field(10000, gt=0)
    """Number of rollouts over which the coefficient changes by at most one fifth."""


class KlRewardConfig(Section):
    """KL penalty in the reward of each token, relative to the reference."""

    estimator: KlEstimator = "k1"
    """Estimator of the divergence from sampled tokens (joschu.net/blog/kl-approx.html); `full` is exact, over
    the whole vocabulary."""
    coef: float = Field(0.001, ge=0)
    """Coefficient of the penalty; its initial value if it is adaptive."""
    adaptive: AdaptiveKlConfig | None = None
    """Controller of the coefficient; null keeps it constant."""


class OverlongPenaltyConfig(Section):
    """DAPO's soft penalty for responses near the token limit (arXiv 2503.14476, equation 13)."""

    buffer_tokens: int = Field(gt=0)
    """Number of tokens before `data.max_response_tokens` over which the penalty grows from 0 to `factor`."""
    factor: float = Field(1.0, gt=0)
    """Penalty of a response at the limit, in units of the reward."""


class DynamicSamplingConfig(Section):
    """Replacement of groups in which all rewards are equal (DAPO, arXiv 2503.14476)."""

    max_tries: int = Field(10, gt=0)
    """Maximum number of sampling rounds per step, including the first; then the step trains on the groups
    that it has."""
    metric: str | None = None
    """Part of the reward that is compared, such as `math` or `math/acc`; the total reward if omitted."""


class PolicyGradientConfig(Section):
    """Fields of every algorithm that learns from sampled rollouts."""

    type: str
    rollouts_per_task: int = Field(8, gt=0)
    """Responses sampled per task."""
    policy_loss: Annotated[PolicyLossConfig, Field(discriminator="type"), type_shorthand("clip")] = (
        ClippedLossConfig()
    )
    """Policy loss, a function of ratios and advantages."""
    old_policy: Literal["trainer", "sampler"] = "trainer"
    """Old policy, which ratios are relative to: the trainer's weights at the start of the step, or the weights
    that sampled the rollout, by the sampler's log-probs, as in Trinity-RFT."""
    aggregation: Aggregation = "token-mean"
    """Aggregation of the tokens' losses to one number."""
    kl_loss: KlLossConfig | None = None
    """KL penalty in the loss; null for none (the reference is then not computed for it)."""
    kl_reward: KlRewardConfig | None = None
    """KL penalty in the reward, before advantages are computed; null for none."""
    entropy_coef: float = Field(0.0, ge=0)
    """Coefficient of the entropy of the response tokens, which is maximized; 0 for none."""
    importance_correction: ImportanceCorrectionConfig | None = None
    """Correction for the difference between the sampler's and the trainer's policy; null for none."""
    rejection: tuple[RejectionRuleConfig, ...] = ()
    """Rules for the difference between the sampler's and the trainer's policy; a token that fails one of them is
    excluded from the loss."""
    overlong_penalty: OverlongPenaltyConfig | None = None
    """Penalty in the reward for responses near the token limit; null for none."""
    distillation: DistillationConfig | None = None
    """Divergence from a teacher, in the loss or as a reward of each token; null for none."""


class GroupBaselineConfig(PolicyGradientConfig):
    """Fields of every algorithm that compares the responses of one task with each other."""

    rollouts_per_task: int = Field(8, gt=0, json_schema_extra={"minimum": 2})
    """Responses sampled per task, at least 2; they are compared with each other."""
    dynamic_sampling: DynamicSamplingConfig | None = None
    """Replacement of groups without a training signal; null keeps them."""

    @field_validator("rollouts_per_task")
    @classmethod
    def _enough_to_compare(cls, rollouts: int) -> int:
        if rollouts < 2:
            raise ValueError(
                "1 response per task leaves nothing to compare it with, so every advantage would be 0; write "
                "2 or "
                "more, or use reinforce_plus_plus or remax, which support one response per task"
            )
        return rollouts


class GrpoConfig(GroupBaselineConfig):
    """Group relative policy optimization (arXiv 2402.03300)."""

    type: Literal["grpo"] = "grpo"
    divide_by_std: bool = True
    """Divide advantages by the standard deviation; false is Dr. GRPO (arXiv 2503.20783)."""
    std_over: Literal["group", "step"] = "group"
    """Rewards whose standard deviation divides: those of the group, or those of all rollouts of the step."""
    std_epsilon: float = Field(1e-6, gt=0)
    """Constant added to the standard deviation."""


class GrpoPasskConfig(GroupBaselineConfig):
    """GRPO for the best of k responses: the advantage is what a response adds to the maximum of the others
    (arXiv 2503.19595, 2505.15201)."""

    type: Literal["grpo_passk"] = "grpo_passk"
    k: int | None = Field(None, ge=2)
    """Number of responses of which the best counts; null for all responses of a group."""
    divide_by_std: bool = True
    """Divide advantages by the standard deviation of the group's rewards."""
    std_epsilon: float = Field(1e-6, gt=0)
    """Constant added to the standard deviation."""

    def faults(self) -> Iterator[str]:
        """Faults between the fields."""
        if self.k is not None and self.k > self.rollouts_per_task:
            yield (
                f"k ({self.k}) is above rollouts_per_task ({self.rollouts_per_task}): the best of k "
                "responses "
                "is estimated from groups of at least k; write a larger rollouts_per_task, or a smaller k"
            )


class RlooConfig(GroupBaselineConfig):
    """REINFORCE with the mean reward of the task's other responses as the baseline (arXiv 2402.14740)."""

    type: Literal["rloo"] = "rloo"


class GdpoConfig(GroupBaselineConfig):
    """GRPO for a reward of several parts, each compared within the group on its own (GDPO, arXiv 2601.05242)."""

    type: Literal["gdpo"] = "gdpo"
    reward_parts: tuple[str, ...] | None = None
    """Names of the parts of the reward that are compared, such as `math` or `score/format`; null for all parts."""
    part_weights: tuple[float, ...] | None = None
    """Weight of the advantage of each of `reward_parts`; null for 1."""
    divide_by_std: bool = True
    """Divide each part's advantages by the standard deviation of the group's values."""
    std_epsilon: float = Field(1e-6, gt=0)
    """Constant added to the standard deviation."""

    def faults(self) -> Iterator[str]:
        """Faults between the fields."""
        if self.part_weights is not None and len(self.part_weights) != len(self.reward_parts or ()):
            yield (
                f"part_weights has {len(self.part_weights)} numbers for {len(self.reward_parts or ())} "
                "reward_parts; write reward_parts, and one number for each"
            )
        for name in ("kl_reward", "overlong_penalty"):
            if getattr(self, name) is not None:
                yield (
                    f"{name} changes the total reward, which gdpo does not read; take it out, or write "
                    "kl_loss, or a reward part"
                )


class OpoConfig(GroupBaselineConfig):
    """On-policy optimization: the baseline is the group's length-weighted mean reward (arXiv 2505.23585)."""

    type: Literal["opo"] = "opo"


class OptimalTokenBaselineConfig(GroupBaselineConfig):
    """REINFORCE with a baseline for each token, which weighs the group's returns by the gradients up to it (arXiv
    2602.07078)."""

    type: Literal["optimal_token_baseline"] = "optimal_token_baseline"


class GpgConfig(GroupBaselineConfig):
    """Group policy gradient: groups without a training signal do not dilute the gradient of the others
    (arXiv 2504.02546)."""

    type: Literal["gpg"] = "gpg"
    scale: Literal["signal", "nonzero", "none"] = "signal"
    """Factor of all advantages: the number of responses divided by that of responses in groups with different
    rewards (`signal`), or by that of responses with a reward other than 0 (`nonzero`, as in verl); or 1."""
    policy_loss: Annotated[PolicyLossConfig, Field(discriminator="type"), type_shorthand("gpg")] = (
        GpgLossConfig()
    )
    """Policy loss, a function of ratios and advantages."""


class MeanBaselineConfig(Section):
    """Mean of the group's rewards."""

    type: Literal["mean"] = "mean"


class LogAvgExpBaselineConfig(Section):
    """tau log mean exp(reward / tau): the mean for a large tau, the maximum for a small tau."""

    type: Literal["log_avg_exp"] = "log_avg_exp"
    tau: float = Field(1.0, gt=0)
    """Temperature of the average, in units of the reward; independent of the policy loss's `tau`."""


OpmdBaselineConfig = Annotated[
    MeanBaselineConfig | LogAvgExpBaselineConfig, Field(discriminator="type"), type_shorthand("mean")
]


class OpmdConfig(GroupBaselineConfig):
    """Online policy mirror descent (Trinity-RFT, arXiv 2505.17826; Kimi k1.5, arXiv 2501.12599)."""

    type: Literal["opmd"] = "opmd"
    baseline: OpmdBaselineConfig = MeanBaselineConfig()
    """Baseline that is subtracted from rewards."""
    policy_loss: Annotated[PolicyLossConfig, Field(discriminator="type"), type_shorthand("opmd")] = (
        OpmdLossConfig()
    )
    """Policy loss, a function of ratios and advantages."""


class ReinforcePlusPlusConfig(PolicyGradientConfig):
    """REINFORCE with returns normalized over the whole step (arXiv 2501.03262)."""

    type: Literal["reinforce_plus_plus"] = "reinforce_plus_plus"
    gamma: float = Field(1.0, ge=0, le=1)
    """Discount factor per token; 1 for no discount."""


class ReinforcePlusPlusBaselineConfig(GroupBaselineConfig):
    """REINFORCE++ on rewards minus their group's mean (arXiv 2501.03262)."""

    type: Literal["reinforce_plus_plus_baseline"] = "reinforce_plus_plus_baseline"


class ReinforceConfig(PolicyGradientConfig):
    """REINFORCE without a baseline: the advantage is the reward (Williams, 1992)."""

    type: Literal["reinforce"] = "reinforce"


class RaftConfig(PolicyGradientConfig):
    """Fine-tuning on the model's own rollouts (RAFT, arXiv 2304.06767): cross entropy, whatever their reward."""

    type: Literal["raft"] = "raft"
    min_reward: float | None = None
    """Minimum reward of the rollouts that are trained on; null trains on all, for workflows that return only
    successes."""
    policy_loss: Annotated[PolicyLossConfig, Field(discriminator="type"), type_shorthand("gpg")] = (
        GpgLossConfig()
    )
    """Policy loss, a function of ratios and advantages; `gpg` is the cross entropy."""


class AsymReConfig(GroupBaselineConfig):
    """REINFORCE with the group's mean reward plus a shift as the baseline (AsymRE, arXiv 2506.20520)."""

    type: Literal["asymre"] = "asymre"
    baseline_shift: float = -0.1
    """Number added to the mean; below 0, good responses count more than bad ones."""


class DistillationOnlyConfig(PolicyGradientConfig):
    """On-policy distillation (arXiv 2306.13649, 2306.08543): only the teacher gives a signal, and the reward is
    measured."""

    type: Literal["distillation"] = "distillation"
    rollouts_per_task: int = Field(1, gt=0)
    """Responses sampled per task; they are not compared with each other."""
    distillation: DistillationConfig
    """Divergence from a teacher, in the loss or as a reward of each token."""

    def faults(self) -> Iterator[str]:
        """Faults between the fields."""
        for name in ("kl_reward", "overlong_penalty"):
            if getattr(self, name) is not None:
                yield (
                    f"{name} changes the reward, which distillation does not train on; remove it, or write "
                    "an algorithm that does, such as `type: grpo` with the same `distillation`"
                )


class RemaxConfig(PolicyGradientConfig):
    """REINFORCE with the reward of the task's greedy response as the baseline (arXiv 2310.10505)."""

    type: Literal["remax"] = "remax"
    rollouts_per_task: int = Field(1, gt=0)
    """Responses sampled per task, in addition to the greedy one, which is never trained on."""


class ImitationScheduleConfig(Section):
    """Schedule of mix's `mu` in trainer steps (CHORD, arXiv 2508.11408): linear warm-up from 0, then a cosine."""

    warmup_steps: int = Field(0, ge=0)
    """Number of steps until `mu` is reached."""
    decay_steps: int = Field(0, ge=0)
    """Number of further steps until `final` is reached."""
    final: float = Field(0.1, ge=0, lt=1)
    """Value after the decay."""


class MixConfig(GroupBaselineConfig):
    """GRPO on sampled rollouts and SFT on an expert's demonstrations in one update (Trinity-RFT's `mix`)."""

    type: Literal["mix"] = "mix"
    expert: str | None = None
    """Name of the expert's set in `data.demonstrations`; the only set if omitted."""
    mu: float = Field(0.1, gt=0, lt=1)
    """Weight of the cross entropy of the expert's demonstrations; GRPO's loss has the weight 1 - mu."""
    mu_schedule: ImitationScheduleConfig | None = None
    """Schedule of `mu`, which is then its peak; null keeps it constant."""
    expert_weight: Literal["none", "p_one_minus_p"] = "none"
    """Weight of each token of a demonstration: 1, or p (1 - p) of its probability p, which is CHORD's phi."""
    expert_fraction: float = Field(0.5, gt=0, lt=1)
    """Fraction of an update's sequences that are demonstrations, added to a full update of rollouts."""
    divide_by_std: bool = True
    """Divide advantages by the group's standard deviation."""
    std_epsilon: float = Field(1e-6, gt=0)
    """Constant added to the standard deviation."""


class RewardResamplingConfig(Section):
    """Rollouts drawn by their rewards, with replacement, for the updates of a step (PF-PPO, arXiv 2409.06957)."""

    method: Literal["pow", "max_min", "max_random"] = "pow"
    """Weight of a rollout: a power of its absolute reward; 1 for the highest and the lowest reward of the step, else
    0; or 0.4 for the highest reward of the step, else 0.1."""
    power: float = Field(2.0, ge=0)
    """Exponent of `pow`."""


class PpoConfig(PolicyGradientConfig):
    """Proximal policy optimization: advantages by GAE, with a critic (arXiv 1707.06347, 1506.02438)."""

    type: Literal["ppo"] = "ppo"
    rollouts_per_task: int = Field(1, gt=0)
    """Responses sampled per task; they are not compared with each other."""
    gamma: float = Field(1.0, ge=0, le=1)
    """Discount factor per token; 1 for no discount."""
    lam: float = Field(1.0, ge=0, le=1)
    """Lambda of GAE: 1 uses rewards (no bias), 0 uses the critic (least variance)."""
    whiten: bool = True
    """Normalize the advantages of a step to mean 0 and standard deviation 1."""
    resampling: RewardResamplingConfig | None = None
    """Rollouts that policy and critic train on, drawn by their rewards after advantages are computed; null trains on
    each rollout."""
    critic: CriticConfig = CriticConfig()
    """Value model, and its training."""


class CustomConfig(PolicyGradientConfig):
    """A user's own advantage function, loss function, or both; see docs/algorithms/custom.md."""

    type: Literal["custom"] = "custom"
    advantages: str | None = None
    """Advantage function, as `file.py:name` or a dotted path: `f(batch: RolloutBatch) -> Tensor`, one value
    per rollout or per token; null for GRPO's advantages."""
    loss: str | None = None
    """Loss function, as `file.py:name` or a dotted path: `f(micro_batch, outputs, counts) -> LossOutput`;
    null for the built-in loss with the options of this section."""
    ref_logprobs: bool = False
    """Whether the reference model's log-probs are computed for `loss`, as `micro_batch.ref_logprobs`."""
    dynamic_sampling: DynamicSamplingConfig | None = None
    """Replacement of groups in which all rewards are equal; null keeps them."""

    def faults(self) -> Iterator[str]:
        """Faults between the fields."""
        if self.advantages is None and self.loss is None:
            yield ("custom needs `advantages`, `loss`, or both, such as `loss: file.py:my_loss`")
        if self.loss is None and self.ref_logprobs:
            yield ("ref_logprobs is read by `loss` only; write a `loss`, or take ref_logprobs out")
        if self.loss is not None:
            fields = type(self).model_fields
            unused = [name for name in _BUILT_IN_LOSS_OPTIONS if getattr(self, name) != fields[name].default]
            if unused:
                yield (
                    f"{unused[0]} is an option of the built-in loss, which `loss` replaces; take one of the two out"
                )
            if self.distillation is not None and self.distillation.loss is not None:
                yield (
                    "distillation.loss is a term of the built-in loss, which `loss` replaces; write "
                    "distillation.reward, with which `loss` finds micro_batch.teacher_logprobs"
                )


_BUILT_IN_LOSS_OPTIONS = (
    "policy_loss",
    "aggregation",
    "kl_loss",
    "entropy_coef",
    "importance_correction",
    "rejection",
)


class SftConfig(Section):
    """Supervised fine-tuning: the cross entropy of demonstrations, averaged over their tokens."""

    type: Literal["sft"] = "sft"


class DpoConfig(Section):
    """Direct preference optimization: prefers chosen over rejected responses (arXiv 2305.18290)."""

    type: Literal["dpo"] = "dpo"
    beta: float = Field(0.1, gt=0)
    """Strength of the regularization towards the reference, which is the initial model."""
    label_smoothing: float = Field(0.0, ge=0, lt=0.5)
    """Assumed fraction of pairs with swapped labels (conservative DPO)."""


CriticFreeConfig = (
    GrpoConfig
    | GrpoPasskConfig
    | RlooConfig
    | OpoConfig
    | GdpoConfig
    | OptimalTokenBaselineConfig
    | GpgConfig
    | OpmdConfig
    | ReinforcePlusPlusConfig
    | ReinforcePlusPlusBaselineConfig
    | RemaxConfig
    | ReinforceConfig
    | RaftConfig
    | AsymReConfig
    | DistillationOnlyConfig
    | MixConfig
    | CustomConfig
)
"""Algorithms that learn from sampled rollouts without a critic."""
RolloutAlgorithmConfig = CriticFreeConfig | PpoConfig
"""Algorithms that learn from sampled rollouts."""
OfflineAlgorithmConfig = SftConfig | DpoConfig
"""Algorithms that learn from demonstrations or pairs, without sampling."""
AlgorithmConfig = Annotated[RolloutAlgorithmConfig | OfflineAlgorithmConfig, Field(discriminator="type")]
