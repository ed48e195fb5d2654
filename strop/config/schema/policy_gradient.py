"""Fields of every algorithm that learns from sampled rollouts, PPO's critic, and PRIME's process reward model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from strop.config.schema.base import Section, type_shorthand
from strop.config.schema.distillation import DistillationConfig
from strop.config.schema.model import ModelConfig
from strop.config.schema.optimizer import (
    AdamWConfig,
    ConstantScheduleConfig,
    MetricFreeScheduleConfig,
    OptimizerConfig,
    clipping_faults,
)
from strop.config.schema.policy_loss import (
    ClippedLossConfig,
    ImportanceCorrectionConfig,
    PolicyLossConfig,
    RejectionRuleConfig,
)
from strop.config.units import MicroBatchSize

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


HeadInit = Literal["zero", "normal", "score"]
"""Initial weights of a head of one output: new ones, or those of the head `score` of a reward model."""


class CriticConfig(Section):
    """Value model, a separate model that predicts the return of a state, and its training."""

    model: ModelConfig | None = None
    """Model that the critic starts from, with a head of one output; the policy's `model` if omitted."""
    head: HeadInit = "zero"
    """Initial weights of the head: `zero`, so that the first values are 0; `normal`, a normal distribution with the
    model's `initializer_range` as standard deviation, as in transformers; or `score`, the head of the reward model in
    `model.path`."""
    value_clip: float | None = Field(0.5, gt=0)
    """Maximum change of a value, relative to the start of the step, that the value loss counts; null for no
    limit."""
    aggregation: Aggregation = "token-mean"
    """Aggregation of the value loss over the targets of an update. `token-mean` gives every target the same weight; the
    others weigh sequences as in `algorithm.aggregation`."""
    warmup_steps: int = Field(0, ge=0)
    """Number of first steps in which only the critic is trained."""
    tasks_per_update: int | None = Field(None, gt=0)
    """Tasks whose rollouts make one update of the critic; the policy's value if omitted."""
    epochs_per_step: int | None = Field(None, gt=0)
    """Epochs of the critic over a step's rollouts; the policy's value if omitted."""
    microbatch: MicroBatchSize | None = None
    """Size of a micro-batch, in `tokens` or `sequences`; the policy's value if omitted."""
    optimizer: Annotated[OptimizerConfig, type_shorthand("adamw")] = AdamWConfig(lr=1e-5)
    """Optimizer of the critic."""
    schedule: Annotated[MetricFreeScheduleConfig, type_shorthand("constant")] = ConstantScheduleConfig()
    """Learning rate schedule of the critic."""
    max_grad_norm: float | None = Field(1.0, gt=0)
    """Maximum norm of the gradient; larger gradients are scaled down to it. Null for no limit."""

    def faults(self) -> Iterator[str]:
        """Faults between the fields."""
        yield from clipping_faults(self.optimizer, self.max_grad_norm)
        if self.model is not None and self.model.lora is not None and self.model.lora.adapter is not None:
            yield (
                "model.lora.adapter is of a policy, and the critic's adapter starts new; remove it, or write a model "
                "with the adapter merged as model.path"
            )


class ProcessRewardConfig(Section):
    """Language model that is trained to tell right from wrong responses, and rewards each token (implicit process
    reward model, arXiv 2412.01981)."""

    model: ModelConfig | None = None
    """Model that the process reward model starts from, which is also its reference; the policy's `model` if omitted."""
    beta: float = Field(0.05, gt=0)
    """Factor between the log-ratio to the reference and the reward."""
    normalize: bool = True
    """Divide the rewards of a step by the largest absolute reward-to-go of its tokens."""
    update_first: bool = True
    """Train the model on the step's rollouts before it rewards them; false rewards them first."""
    tasks_per_update: int | None = Field(None, gt=0)
    """Tasks whose rollouts make one update of the model; the policy's value if omitted."""
    optimizer: Annotated[OptimizerConfig, type_shorthand("adamw")] = AdamWConfig(lr=1e-6)
    """Optimizer of the model."""
    schedule: Annotated[MetricFreeScheduleConfig, type_shorthand("constant")] = ConstantScheduleConfig()
    """Learning rate schedule of the model."""
    max_grad_norm: float | None = Field(10.0, gt=0)
    """Maximum norm of the gradient; larger gradients are scaled down to it. Null for no limit."""

    def faults(self) -> Iterator[str]:
        """Faults between the fields."""
        yield from clipping_faults(self.optimizer, self.max_grad_norm)


class OversamplingConfig(Section):
    """More tasks than a step trains on: groups of a medium mean reward are preferred (PRIME, arXiv 2502.01456)."""

    factor: int = Field(4, ge=2)
    """Number of sampled tasks for each task that is trained on."""
    min_mean_reward: float = 0.2
    """Minimum mean reward of a preferred group."""
    max_mean_reward: float = 0.8
    """Maximum mean reward of a preferred group."""
    prefer_complete: bool = True
    """Whether a group with a response that was cut off at a limit is not preferred."""

    def faults(self) -> Iterator[str]:
        """Faults between the fields."""
        if self.min_mean_reward > self.max_mean_reward:
            yield (
                f"min_mean_reward ({self.min_mean_reward}) is above max_mean_reward ({self.max_mean_reward}), so that "
                "no group is preferred; write a smaller min_mean_reward"
            )
