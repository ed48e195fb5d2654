"""Fields of every algorithm that learns from sampled rollouts: penalties, corrections, loss and aggregation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from strop.config.schema.base import Section, type_shorthand
from strop.config.schema.distillation import DistillationConfig
from strop.config.schema.off_policy import ImportanceCorrectionConfig, RejectionRuleConfig
from strop.config.schema.policy_loss import ClippedLossConfig, PolicyLossConfig

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
    ratio_level: Literal["token", "sequence"] = "token"
    """Ratio of `weight_by_ratio`: each token's own, or the geometric mean of the sequence's ratios, as that of `gspo`,
    with its gradient."""

    def faults(self) -> Iterator[str]:
        """Faults between the fields."""
        if self.weight_by_ratio and self.estimator not in ("k1", "k3"):
            yield (
                f"weight_by_ratio corrects the gradient of the estimators k1 and k3, and estimator is "
                f"{self.estimator}; write estimator: k3, or take weight_by_ratio out"
            )
        if self.max_ratio is not None and not self.weight_by_ratio:
            yield "max_ratio has no effect without weight_by_ratio: true; write it, or take max_ratio out"
        if self.ratio_level == "sequence" and not self.weight_by_ratio:
            yield "ratio_level has no effect without weight_by_ratio: true; write it, or take ratio_level out"


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


class EntropyFilterConfig(Section):
    """Clip_B and Clip_V (arXiv 2602.03392): tokens whose punishment lowers the entropy most are left out of the
    policy's loss."""

    center: Literal["step", "vocabulary"] = "step"
    """Reference of a token's effect on the entropy: the mean over the step's tokens (Clip_B), or the
    expectation over the vocabulary at the token (Clip_V), which needs a further forward pass."""
    deviations: float = Field(2.5, gt=0)
    """Distance from the center, in standard deviations over the step's tokens, beyond which a token is left out."""
    max_fraction: float | None = Field(None, gt=0, le=1)
    """Maximum fraction of the step's tokens that are left out, at least one token; null for no maximum."""

    def faults(self) -> Iterator[str]:
        """Faults between the fields."""
        if self.max_fraction is not None and self.center == "step":
            yield "max_fraction belongs to Clip_V; write center: vocabulary, or remove it"


class PolicyGradientConfig(Section):
    """Fields of every algorithm that learns from sampled rollouts."""

    type: str
    rollouts_per_task: int = Field(8, gt=0)
    """Responses sampled per task."""
    dynamic_sampling: DynamicSamplingConfig | None = None
    """Replacement of groups in which all rewards are equal; null keeps them."""
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
    mask_truncated: bool = False
    """Leave responses that were cut off at a limit out of the policy's loss (overlong filtering, arXiv 2503.14476,
    section 3.4). Their rewards count in baselines, and they count as sequences."""
    entropy_filter: EntropyFilterConfig | None = None
    """Tokens of negative advantage that are left out of the policy's loss to keep the entropy up; null for none."""
    overlong_penalty: OverlongPenaltyConfig | None = None
    """Penalty in the reward for responses near the token limit; null for none."""
    distillation: DistillationConfig | None = None
    """Divergence from a teacher, in the loss or as a reward of each token; null for none."""

    @field_validator("dynamic_sampling")
    @classmethod
    def _enough_to_differ(
        cls, settings: DynamicSamplingConfig | None, info: ValidationInfo
    ) -> DynamicSamplingConfig | None:
        if settings is not None and info.data.get("rollouts_per_task") == 1:
            raise ValueError(
                "dynamic_sampling replaces groups in which all rewards are equal, which every group of one response "
                "is; write rollouts_per_task: 2 or more, or remove dynamic_sampling"
            )
        return settings


class GroupBaselineConfig(PolicyGradientConfig):
    """Fields of every algorithm that compares the responses of one task with each other."""

    rollouts_per_task: int = Field(8, gt=0, json_schema_extra={"minimum": 2})
    """Responses sampled per task, at least 2; they are compared with each other."""

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
