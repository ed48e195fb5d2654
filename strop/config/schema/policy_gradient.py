"""Questions of a run to its algorithm; fields of every algorithm that learns from sampled rollouts, PPO's critic and
PRIME's process reward model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, NamedTuple

from pydantic import Field, ValidationInfo, field_validator

from strop.config.schema.base import Section, type_shorthand
from strop.config.schema.distillation import (
    DistillationConfig,
    DivergenceConfig,
    SampledKlLossConfig,
    TeacherConfig,
)
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

if TYPE_CHECKING:
    from strop.config.schema.preference import ReferenceSyncConfig, RewardModelingConfig
    from strop.config.schema.run import Run

SampledKl = Literal["k1", "abs", "k2", "k3"]
K2GradientKl = Literal["k1+", "abs+", "k3+"]
KlEstimator = Literal[SampledKl, "full"]
KlLossEstimator = Literal[KlEstimator, K2GradientKl]
Aggregation = Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]


HeadInit = Literal["zero", "normal", "score"]
"""Initial weights of a head of one output: new ones, or those of the head `score` of a reward model."""
Rows = Literal["tasks", "demonstrations", "pairs", "labels", "scores", "steps"]
"""Rows that an algorithm trains on: tasks that are sampled from, or given responses: demonstrations, pairs of a chosen
and a rejected response, responses with a label, responses with a score, or responses whose steps have labels."""


class AddedDemonstrations(NamedTuple):
    """Demonstrations that an algorithm trains on together with its rollouts."""

    field: str
    """Field of the algorithm that names the set."""
    name: str | None
    """Name of the set in `data.demonstrations`; None for the only set."""
    fraction: float
    """Fraction of an update's sequences."""
    like_rollouts: bool
    """Whether their log-probs are computed at the temperature of rollouts."""


class BaseAlgorithmConfig(Section):
    """Questions of the rest of a run to its algorithm. Each algorithm overrides the answers that differ; its formulas
    are in `strop/algorithms`, which imports torch."""

    is_offline: ClassVar[bool] = False
    """Whether the algorithm trains on given responses, and samples nothing."""
    trains_on_reward: ClassVar[bool] = True
    """Whether rollouts need a reward; else it is only measured."""
    reward_is_probability: ClassVar[bool] = False
    """Whether the reward must be between 0 and 1."""
    needs_entropy: ClassVar[bool] = False
    """Whether the loss reads `TokenOutputs.entropy`, as a metric and for the entropy bonus."""
    needs_greedy_baseline: ClassVar[bool] = False
    """Whether advantages read `RolloutBatch.baselines`."""
    needs_turn_states: ClassVar[bool] = False
    """Whether advantages read `RolloutBatch.turn_states`."""
    needs_gradient_norms: ClassVar[bool] = False
    """Whether advantages read `RolloutBatch.gradient_norms`."""

    @property
    def rows(self) -> Rows:
        """Rows of the training data."""
        return "tasks"

    @property
    def compared_parts(self) -> tuple[str, ...] | None:
        """Names of the parts of the reward that advantages read; None for all."""
        return ()

    @property
    def teachers(self) -> tuple[TeacherConfig, ...]:
        """Frozen models that the policy learns from."""
        return ()

    @property
    def trained_models(self) -> Mapping[str, CriticConfig | ProcessRewardConfig]:
        """Models that are trained in addition to the policy, by the name of their section."""
        return {}

    @property
    def critic_warmup_steps(self) -> int:
        """Number of first steps in which the policy is not trained."""
        return 0

    @property
    def group_preference(self) -> OversamplingConfig | None:
        """Choice of a step's groups among more groups; None where a step trains on all that it samples."""
        return None

    @property
    def added_demonstrations(self) -> AddedDemonstrations | None:
        """Demonstrations that are trained on together with rollouts; None for none."""
        return None

    @property
    def user_functions(self) -> Mapping[str, str]:
        """Functions of the user, by the field that names them."""
        return {}

    @property
    def needs_reference_model(self) -> bool:
        """Whether the engine must keep a reference model, to compute its log-probs in every step."""
        return False

    @property
    def needs_initial_logprobs(self) -> bool:
        """Whether the initial model's log-probs of the whole dataset are computed before the first update."""
        return False

    @property
    def needs_divergence(self) -> bool:
        """Whether the loss reads `TokenOutputs.divergence`."""
        return False

    @property
    def teacher_divergence(self) -> DivergenceConfig | None:
        """Divergence over the vocabulary that the loss reads as `TokenOutputs.teacher_divergence`; None for none."""
        return None

    @property
    def changed_reference(self) -> ReferenceSyncConfig | None:
        """Changes of the reference model; None for a reference that stays."""
        return None

    @property
    def reward_model(self) -> RewardModelingConfig | None:
        """The section of an algorithm that trains a reward model; None for one that trains a policy."""
        return None

    def run_faults(self, run: Run) -> Iterator[str]:
        """Faults in what the algorithm requires of the other sections of a run, one sentence each."""
        return iter(())


class BaseOfflineConfig(BaseAlgorithmConfig):
    """Answers of every algorithm on given responses, which has none of the options of rollouts."""

    is_offline: ClassVar[bool] = True
    rollouts_per_task: ClassVar[int] = 1
    distillation: ClassVar[None] = None
    dynamic_sampling: ClassVar[None] = None
    overlong_penalty: ClassVar[None] = None


class KlLossConfig(Section):
    """KL penalty in the loss, relative to the reference, which is the initial model."""

    estimator: KlLossEstimator = "k3"
    """Estimator of the divergence from sampled tokens (joschu.net/blog/kl-approx.html); with `+`, its value with
    the gradient of `k2`; `full` is exact, over the whole vocabulary, and requires a forward pass of the reference in
    every update."""
    coef: float = Field(default=0.001, ge=0)
    """Coefficient of the penalty."""
    weight_by_ratio: bool = False
    """Multiply the estimate of each token by its ratio to the old policy, so that the gradient is that of
    KL(policy || reference) for tokens of the old policy (arXiv 2512.02556); `k1` and `k3` only."""
    max_ratio: float | None = Field(default=None, gt=0)
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

    target_kl: float = Field(default=0.1, gt=0)
    """Target divergence, in nats per token, by the penalty's estimator."""
    horizon: int = Field(default=10000, gt=0)
    """Number of rollouts over which the coefficient changes by at most one fifth."""


class KlRewardConfig(Section):
    """KL penalty in the reward of each token, relative to the reference."""

    estimator: KlEstimator = "k1"
    """Estimator of the divergence from sampled tokens (joschu.net/blog/kl-approx.html); `full` is exact, over
    the whole vocabulary."""
    coef: float = Field(default=0.001, ge=0)
    """Coefficient of the penalty; its initial value if it is adaptive."""
    adaptive: AdaptiveKlConfig | None = None
    """Controller of the coefficient; null keeps it constant."""


class OverlongPenaltyConfig(Section):
    """DAPO's soft penalty for responses near the token limit (arXiv 2503.14476, equation 13)."""

    buffer_tokens: int = Field(gt=0)
    """Number of tokens before `data.max_response_tokens` over which the penalty grows from 0 to `factor`."""
    factor: float = Field(default=1.0, gt=0)
    """Penalty of a response at the limit, in units of the reward."""


class DynamicSamplingConfig(Section):
    """Replacement of groups in which all rewards are equal (DAPO, arXiv 2503.14476)."""

    max_tries: int = Field(default=10, gt=0)
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
    deviations: float = Field(default=2.5, gt=0)
    """Distance from the center, in standard deviations over the step's tokens, beyond which a token is left out."""
    max_fraction: float | None = Field(default=None, gt=0, le=1)
    """Maximum fraction of the step's tokens that are left out, at least one token; null for no maximum."""

    def faults(self) -> Iterator[str]:
        """Faults between the fields."""
        if self.max_fraction is not None and self.center == "step":
            yield "max_fraction belongs to Clip_V; write center: vocabulary, or remove it"


class PolicyGradientConfig(BaseAlgorithmConfig):
    """Fields of every algorithm that learns from sampled rollouts."""

    type: str
    needs_entropy: ClassVar[bool] = True
    rollouts_per_task: int = Field(default=8, gt=0)
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
    entropy_coef: float = Field(default=0.0, ge=0)
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

    @property
    def teachers(self) -> tuple[TeacherConfig, ...]:
        return () if self.distillation is None else self.distillation.teachers

    @property
    def needs_reference_model(self) -> bool:
        """Whether a penalty compares with the reference."""
        return self.kl_loss is not None or self.kl_reward is not None

    @property
    def needs_reference_logprobs(self) -> bool:
        """Whether the reference's log-probs of sampled tokens are needed; the `full` estimator needs none."""
        penalties = (self.kl_loss, self.kl_reward)
        return any(penalty is not None and penalty.estimator != "full" for penalty in penalties)

    @property
    def needs_start_logprobs(self) -> bool:
        """Whether the old policy's log-probs of all experiences are needed before the step's first update."""
        selects = self.policy_loss.selects_by_covariance or self.entropy_filter is not None
        if selects or self.needs_gradient_norms:
            return True
        correction = self.importance_correction
        rejects = bool(self.rejection) and self.old_policy == "trainer"
        return rejects or (correction is not None and correction.normalize)

    @property
    def needs_divergence(self) -> bool:
        return self.kl_loss is not None and self.kl_loss.estimator == "full"

    @property
    def teacher_divergence(self) -> DivergenceConfig | None:
        if self.distillation is None or self.distillation.loss is None:
            return None
        divergence = self.distillation.loss.divergence
        return None if isinstance(divergence, SampledKlLossConfig) else divergence

    @property
    def needs_teacher_logprobs(self) -> bool:
        """Whether the teachers' log-probs of sampled tokens are needed; divergences over the vocabulary need none."""
        section = self.distillation
        return section is not None and (section.reward is not None or self.teacher_divergence is None)

    @property
    def reward_reads_logprobs(self) -> bool:
        """Whether advantages depend on the policy's log-probs of all sampled tokens at the start of the step."""
        if self.kl_reward is not None and self.kl_reward.estimator != "full":
            return True
        return self.distillation is not None and self.distillation.reward is not None

    @property
    def ratio_vanishes_at_zero_advantage(self) -> bool:
        """Whether the ratio to the old policy adds nothing to the loss and its gradient in a rollout whose advantages
        are all 0: a divergence that is not weighted by it, an entropy bonus and a teacher's loss do not read it."""
        weighted = self.kl_loss is not None and self.kl_loss.weight_by_ratio
        return self.policy_loss.vanishes_at_zero_advantage and not weighted

    @property
    def vanishes_at_zero_advantage(self) -> bool:
        """Whether a rollout whose advantages are all 0 adds nothing to the loss and its gradient.

        A divergence, an entropy bonus and a user's own loss function do not depend on advantages alone.
        """
        from_teacher = self.distillation is not None and self.distillation.loss is not None
        others = self.kl_loss is not None or self.entropy_coef > 0 or from_teacher
        return self.ratio_vanishes_at_zero_advantage and not others

    def run_faults(self, run: Run) -> Iterator[str]:
        """Faults of an aggregation that does not give the loss its meaning."""
        if self.policy_loss.sums_over_response and self.aggregation != "seq-mean-token-sum":
            yield (
                f"algorithm.aggregation is {self.aggregation}, but the loss {self.policy_loss.type} is a sum over the "
                "tokens of a response, averaged over responses; write aggregation: seq-mean-token-sum"
            )


class GroupBaselineConfig(PolicyGradientConfig):
    """Fields of every algorithm that compares the responses of one task with each other."""

    rollouts_per_task: int = Field(default=8, gt=0, json_schema_extra={"minimum": 2})
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


class CriticConfig(Section):
    """Value model, a separate model that predicts the return of a state, and its training."""

    has_reference: ClassVar[bool] = False
    """Whether the model as it starts is kept as a reference."""
    model: ModelConfig | None = None
    """Model that the critic starts from, with a head of one output; the policy's `model` if omitted."""
    head: HeadInit = "zero"
    """Initial weights of the head: `zero`, so that the first values are 0; `normal`, a normal distribution with the
    model's `initializer_range` as standard deviation, as in transformers; or `score`, the head of the reward model in
    `model.path`."""
    value_clip: float | None = Field(default=0.5, gt=0)
    """Maximum change of a value, relative to the start of the step, that the value loss counts; null for no
    limit."""
    aggregation: Aggregation = "token-mean"
    """Aggregation of the value loss over the targets of an update. `token-mean` gives every target the same weight; the
    others weigh sequences as in `algorithm.aggregation`."""
    warmup_steps: int = Field(default=0, ge=0)
    """Number of first steps in which only the critic is trained."""
    tasks_per_update: int | None = Field(default=None, gt=0)
    """Tasks whose rollouts make one update of the critic; the policy's value if omitted."""
    epochs_per_step: int | None = Field(default=None, gt=0)
    """Epochs of the critic over a step's rollouts; the policy's value if omitted."""
    microbatch: MicroBatchSize | None = None
    """Size of a micro-batch, in `tokens` or `sequences`; the policy's value if omitted."""
    optimizer: Annotated[OptimizerConfig, type_shorthand("adamw")] = AdamWConfig(lr=1e-5)
    """Optimizer of the critic."""
    schedule: Annotated[MetricFreeScheduleConfig, type_shorthand("constant")] = ConstantScheduleConfig()
    """Learning rate schedule of the critic."""
    max_grad_norm: float | None = Field(default=1.0, gt=0)
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
    beta: float = Field(default=0.05, gt=0)
    """Factor between the log-ratio to the reference and the reward."""
    microbatch: ClassVar[None] = None
    epochs_per_step: ClassVar[int] = 1
    has_reference: ClassVar[bool] = True
    normalize: bool = True
    """Divide the rewards of a step by the largest absolute reward-to-go of its tokens."""
    update_first: bool = True
    """Train the model on the step's rollouts before it rewards them; false rewards them first."""
    tasks_per_update: int | None = Field(default=None, gt=0)
    """Tasks whose rollouts make one update of the model; the policy's value if omitted."""
    optimizer: Annotated[OptimizerConfig, type_shorthand("adamw")] = AdamWConfig(lr=1e-6)
    """Optimizer of the model."""
    schedule: Annotated[MetricFreeScheduleConfig, type_shorthand("constant")] = ConstantScheduleConfig()
    """Learning rate schedule of the model."""
    max_grad_norm: float | None = Field(default=10.0, gt=0)
    """Maximum norm of the gradient; larger gradients are scaled down to it. Null for no limit."""

    def faults(self) -> Iterator[str]:
        """Faults between the fields."""
        yield from clipping_faults(self.optimizer, self.max_grad_norm)


class OversamplingConfig(Section):
    """More tasks than a step trains on: groups of a medium mean reward are preferred (PRIME, arXiv 2502.01456)."""

    factor: int = Field(default=4, ge=2)
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
