"""`algorithm`: advantages and losses, one class for each algorithm and policy loss."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from strop.config.schema.base import Section, type_shorthand
from strop.config.schema.buffer import MemorySyncConfig
from strop.config.schema.distillation import DistillationConfig, SampledKlLossConfig
from strop.config.schema.policy_gradient import (
    AddedDemonstrations,
    Aggregation,
    BaseOfflineConfig,
    CriticConfig,
    GroupBaselineConfig,
    OversamplingConfig,
    PolicyGradientConfig,
    ProcessRewardConfig,
    Rows,
)
from strop.config.schema.policy_loss import (
    GpgLossConfig,
    OpmdLossConfig,
    PolicyLossConfig,
    SelfPlayLossConfig,
)
from strop.config.schema.preference import PreferenceConfig, RewardModelingConfig, UnpairedConfig

if TYPE_CHECKING:
    from strop.config.schema.run import Run


class GrpoConfig(GroupBaselineConfig):
    """Group relative policy optimization (arXiv 2402.03300)."""

    type: Literal["grpo"] = "grpo"
    divide_by_std: bool = True
    """Divide advantages by the standard deviation; false is Dr. GRPO (arXiv 2503.20783)."""
    std_over: Literal["group", "step"] = "group"
    """Rewards whose standard deviation divides: those of the group, or those of all rollouts of the step."""
    std_epsilon: float = Field(default=1e-6, gt=0)
    """Constant added to the standard deviation."""
    min_reward_std: float | None = Field(default=None, ge=0)
    """Standard deviation of rewards up to which a group is not trained on; null trains on all groups."""
    repeat_groups: bool = False
    """Fill a step up to its number of groups with draws, with replacement, from the groups that `min_reward_std` leaves
    (POLARIS, https://hkunlp.github.io/blog/2025/Polaris); false trains on fewer groups."""
    divide_by_sequences: bool = False
    """Divide the advantages of a rollout by its number of training sequences, which are its turns with
    `sequence_per: turn`."""

    def faults(self) -> Iterator[str]:
        """Faults between the fields."""
        if self.repeat_groups and self.min_reward_std is None:
            yield "repeat_groups replaces the groups that min_reward_std leaves out; write min_reward_std, such as 0.0"


class GrpoPasskConfig(GroupBaselineConfig):
    """GRPO for the best of k responses: the advantage is what a response adds to the maximum of the others
    (arXiv 2503.19595, 2505.15201)."""

    type: Literal["grpo_passk"] = "grpo_passk"
    k: int | None = Field(default=None, ge=2)
    """Number of responses of which the best counts; null for all responses of a group."""
    divide_by_std: bool = True
    """Divide advantages by the standard deviation of the group's rewards."""
    std_epsilon: float = Field(default=1e-6, gt=0)
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
    std_epsilon: float = Field(default=1e-6, gt=0)
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

    @property
    def compared_parts(self) -> tuple[str, ...] | None:
        return self.reward_parts


class GigpoConfig(GroupBaselineConfig):
    """Group-in-group policy optimization for agents: GRPO's advantages, plus a comparison of the turns that begin in
    the same state of the environment (GiGPO, arXiv 2505.10978)."""

    type: Literal["gigpo"] = "gigpo"
    needs_turn_states: ClassVar[bool] = True
    turn_weight: float = Field(default=1.0, ge=0)
    """Weight of the advantages of turns (omega); those of rollouts have the weight 1."""
    gamma: float = Field(default=1.0, ge=0, le=1)
    """Discount factor per turn, in the returns of turns; 1 for no discount."""
    states_over: Literal["group", "step"] = "group"
    """Turns that are compared where their states are equal: those of the group, or those of all rollouts of the
    step."""
    divide_by_std: bool = False
    """Divide advantages by the standard deviation of the rewards, or returns, that are compared."""
    std_epsilon: float = Field(default=1e-6, gt=0)
    """Constant added to the standard deviation."""


class OpoConfig(GroupBaselineConfig):
    """On-policy optimization: the baseline is the group's length-weighted mean reward (arXiv 2505.23585)."""

    type: Literal["opo"] = "opo"


class OptimalTokenBaselineConfig(GroupBaselineConfig):
    """REINFORCE with a baseline for each token, which weighs the group's returns by the gradients up to it (arXiv
    2602.07078)."""

    type: Literal["optimal_token_baseline"] = "optimal_token_baseline"
    needs_gradient_norms: ClassVar[bool] = True


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
    tau: float = Field(default=1.0, gt=0)
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


class AsymReConfig(GroupBaselineConfig):
    """REINFORCE with the group's mean reward plus a shift as the baseline (AsymRE, arXiv 2506.20520)."""

    type: Literal["asymre"] = "asymre"
    baseline_shift: float = -0.1
    """Number added to the mean; below 0, good responses count more than bad ones."""


TokenWeight = Literal["none", "p", "p_one_minus_p"]
"""Weight of a demonstration's token of probability p: 1, p (arXiv 2508.05629), or CHORD's phi (arXiv 2508.11408)."""


class ImitationScheduleConfig(Section):
    """Schedule of mix's `mu` in trainer steps (CHORD, arXiv 2508.11408): linear warm-up from 0, then a cosine."""

    warmup_steps: int = Field(default=0, ge=0)
    """Number of steps until `mu` is reached."""
    decay_steps: int = Field(default=0, ge=0)
    """Number of further steps until `final` is reached."""
    final: float = Field(default=0.1, ge=0, lt=1)
    """Value after the decay."""


class MixConfig(GroupBaselineConfig):
    """GRPO on sampled rollouts and SFT on an expert's demonstrations in one update (Trinity-RFT's `mix`)."""

    type: Literal["mix"] = "mix"
    expert: str | None = None
    """Name of the expert's set in `data.demonstrations`; the only set if omitted."""
    mu: float = Field(default=0.1, gt=0, lt=1)
    """Weight of the cross entropy of the expert's demonstrations; GRPO's loss has the weight 1 - mu."""
    mu_schedule: ImitationScheduleConfig | None = None
    """Schedule of `mu`, which is then its peak; null keeps it constant."""
    expert_weight: TokenWeight = "none"
    """Weight of each token of a demonstration: 1, its probability p, or p (1 - p), which is CHORD's phi."""
    expert_fraction: float = Field(default=0.5, gt=0, lt=1)
    """Fraction of an update's sequences that are demonstrations, added to a full update of rollouts."""
    divide_by_std: bool = True
    """Divide advantages by the group's standard deviation."""
    std_epsilon: float = Field(default=1e-6, gt=0)
    """Constant added to the standard deviation."""

    @property
    def added_demonstrations(self) -> AddedDemonstrations | None:
        return AddedDemonstrations("expert", self.expert, self.expert_fraction, like_rollouts=False)


class ReinforcePlusPlusConfig(PolicyGradientConfig):
    """REINFORCE with returns normalized over the whole step (arXiv 2501.03262)."""

    type: Literal["reinforce_plus_plus"] = "reinforce_plus_plus"
    gamma: float = Field(default=1.0, ge=0, le=1)
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


class SelfPlayConfig(PolicyGradientConfig):
    """Self-play preference optimization: the log-ratio of a response is fitted to its reward (SPPO, arXiv
    2405.00675)."""

    type: Literal["self_play"] = "self_play"
    eta: float = Field(default=1.0, gt=0)
    """Inverse temperature of the baseline, log mean exp(eta reward) / eta; the paper's normalizer where it equals
    that of the policy loss."""
    baseline_over: Literal["group", "step"] = "group"
    """Rollouts of the baseline: those of the same task, as in the paper, or all of the step, as in verl."""
    policy_loss: Annotated[PolicyLossConfig, Field(discriminator="type"), type_shorthand("self_play")] = (
        SelfPlayLossConfig()
    )
    """Policy loss, a function of ratios and advantages."""
    aggregation: Aggregation = "seq-mean-token-sum"
    """Aggregation of the tokens' losses to one number."""

    def faults(self) -> Iterator[str]:
        """Faults between the fields."""
        if self.baseline_over == "group" and self.rollouts_per_task == 1:
            yield (
                "rollouts_per_task is 1, and the reward of a response alone in its group is its baseline; write 2 or "
                "more, or baseline_over: step"
            )


class OnlineDpoConfig(GroupBaselineConfig):
    """Direct preference optimization on pairs of each step's rollouts, with the policy at the step's start as the
    reference (arXiv 2402.04792; SPIN, 2401.01335)."""

    type: Literal["online_dpo"] = "online_dpo"
    rollouts_per_task: int = Field(default=2, gt=0, json_schema_extra={"minimum": 2})
    """Responses sampled per task, at least 2; the best and the worst of them are the pair."""
    beta: float = Field(default=0.1, gt=0)
    """Strength of the regularization towards the reference: a pair's margin is beta times its log-ratio. With one
    update per step it is a factor of the gradient."""
    train_ties: bool = False
    """Train also on the first two responses of a group whose rewards are all equal, the first as the better one, as
    in verl's recipe SPIN."""
    policy_loss: Annotated[PolicyLossConfig, Field(discriminator="type"), type_shorthand("gpg")] = (
        GpgLossConfig()
    )
    """Policy loss, a function of ratios and advantages; `gpg` has DPO's gradient at the reference."""
    aggregation: Aggregation = "seq-mean-token-sum"
    """Aggregation of the tokens' losses to one number."""

    def run_faults(self, run: Run) -> Iterator[str]:
        """Faults of the settings in which the gradient is not that of DPO."""
        yield from super().run_faults(run)
        if self.policy_loss.type != "gpg" or self.aggregation != "seq-mean-token-sum":
            yield (
                "algorithm.policy_loss and algorithm.aggregation: online_dpo sums the log-probs of a response; write "
                "policy_loss: gpg and aggregation: seq-mean-token-sum, or remove both"
            )
        trainer = run.trainer
        if trainer.tasks_per_update not in (None, trainer.tasks_per_step) or trainer.epochs_per_step != 1:
            yield (
                "trainer.tasks_per_update: online_dpo compares with the policy at the step's start, which is the "
                "policy itself in the first update only; write one update per step: remove tasks_per_update, and "
                "leave epochs_per_step at 1"
            )


class DistillationOnlyConfig(PolicyGradientConfig):
    """On-policy distillation (arXiv 2306.13649, 2306.08543): only the teacher gives a signal, and the reward is
    measured."""

    type: Literal["distillation"] = "distillation"
    trains_on_reward: ClassVar[bool] = False
    rollouts_per_task: int = Field(default=1, gt=0)
    """Responses sampled per task; they are not compared with each other."""
    distillation: DistillationConfig
    """Divergence from a teacher, in the loss or as a reward of each token."""
    demonstration_fraction: float = Field(default=0.0, ge=0, lt=1)
    """Fraction of an update's sequences, and of its loss, that are responses of a dataset instead of rollouts: 1 -
    lambda of GKD (arXiv 2306.13649). They are added to a full update of rollouts; 0 for rollouts alone."""
    demonstrations: str | None = None
    """Name of the set in `data.demonstrations` with these responses; the only set if omitted."""

    def faults(self) -> Iterator[str]:
        """Faults between the fields."""
        if self.demonstration_fraction > 0:
            yield from self._demonstration_faults()
        elif self.demonstrations is not None:
            yield "demonstrations has no effect with demonstration_fraction 0; write a fraction, such as 0.5"
        if self.dynamic_sampling is not None:
            yield "dynamic_sampling chooses groups by their rewards, which distillation does not train on; remove it"
        for name in ("kl_reward", "overlong_penalty"):
            if getattr(self, name) is not None:
                yield (
                    f"{name} changes the reward, which distillation does not train on; remove it, or write "
                    "an algorithm that does, such as `type: grpo` with the same `distillation`"
                )

    def _demonstration_faults(self) -> Iterator[str]:
        loss = self.distillation.loss
        if loss is None or isinstance(loss.divergence, SampledKlLossConfig):
            yield (
                "demonstration_fraction needs a divergence over the vocabulary: the policy has not sampled the "
                "tokens of a dataset; write `distillation.loss: {divergence: jsd}`, reverse_kl or forward_kl"
            )
        if self.aggregation != "token-mean":
            yield (
                f"aggregation is {self.aggregation}, but the demonstrations are averaged over tokens; write token-mean"
            )
        if all(teacher.sources is not None for teacher in self.distillation.teachers):
            yield (
                "demonstration_fraction: demonstrations have no data source, and each teacher has `sources`; remove "
                "the `sources` of one"
            )

    @property
    def added_demonstrations(self) -> AddedDemonstrations | None:
        """Responses of the dataset; a teacher judges them at the temperature of rollouts."""
        if self.demonstration_fraction == 0:
            return None
        return AddedDemonstrations(
            "demonstrations", self.demonstrations, self.demonstration_fraction, like_rollouts=True
        )


class PrimeConfig(GroupBaselineConfig):
    """REINFORCE with the rewards of tokens by a process reward model that learns from outcomes (PRIME, arXiv
    2502.01456)."""

    type: Literal["prime"] = "prime"
    reward_is_probability: ClassVar[bool] = True
    outcome_coef: float = Field(default=5.0, ge=0)
    """Weight of the reward of a response, which is between 0 and 1."""
    process_coef: float = Field(default=5.0, ge=0)
    """Weight of the rewards of its tokens."""
    process_reward: ProcessRewardConfig = ProcessRewardConfig()
    """Process reward model, and its training."""
    oversampling: OversamplingConfig | None = None
    """Choice of the groups of a step among more groups; null trains on all."""

    def faults(self) -> Iterator[str]:
        """Faults between the fields."""
        for name in ("kl_reward", "overlong_penalty"):
            if getattr(self, name) is not None:
                yield (
                    f"{name} changes the reward, which prime reads as the probability that the response is right; "
                    "remove it, or write kl_loss"
                )
        if self.oversampling is not None and self.dynamic_sampling is not None:
            yield "oversampling and dynamic_sampling both choose the groups of a step; remove one of the two"

    @property
    def trained_models(self) -> Mapping[str, CriticConfig | ProcessRewardConfig]:
        return {"process_reward": self.process_reward}

    @property
    def group_preference(self) -> OversamplingConfig | None:
        return self.oversampling

    def run_faults(self, run: Run) -> Iterator[str]:
        """Faults of the choice of groups."""
        yield from super().run_faults(run)
        if self.oversampling is None or isinstance(run.synchronizer, MemorySyncConfig):
            return
        if run.synchronizer.style.type != "fixed":
            yield (
                f"algorithm.oversampling chooses among the groups of a step, and synchronizer.style "
                f"{run.synchronizer.style.type} has no steps; write style: fixed"
            )


class RemaxConfig(PolicyGradientConfig):
    """REINFORCE with the reward of the task's greedy response as the baseline (arXiv 2310.10505)."""

    type: Literal["remax"] = "remax"
    needs_greedy_baseline: ClassVar[bool] = True
    rollouts_per_task: int = Field(default=1, gt=0)
    """Responses sampled per task, in addition to the greedy one, which is never trained on."""


class RewardResamplingConfig(Section):
    """Rollouts drawn by their rewards, with replacement, for the updates of a step (PF-PPO, arXiv 2409.06957)."""

    method: Literal["pow", "max_min", "max_random"] = "pow"
    """Weight of a rollout: a power of its absolute reward; 1 for the highest and the lowest reward of the step, else
    0; or 0.4 for the highest reward of the step, else 0.1."""
    power: float = Field(default=2.0, ge=0)
    """Exponent of `pow`."""


class PpoConfig(PolicyGradientConfig):
    """Proximal policy optimization: advantages by GAE, with a critic (arXiv 1707.06347, 1506.02438)."""

    type: Literal["ppo"] = "ppo"
    rollouts_per_task: int = Field(default=1, gt=0)
    """Responses sampled per task; they are not compared with each other."""
    gamma: float = Field(default=1.0, ge=0, le=1)
    """Discount factor per token; 1 for no discount."""
    lam: float = Field(default=1.0, ge=0, le=1)
    """Lambda of GAE: 1 uses rewards (no bias), 0 uses the critic (least variance)."""
    whiten: bool = True
    """Normalize the advantages of a step to mean 0 and standard deviation 1."""
    resampling: RewardResamplingConfig | None = None
    """Rollouts that policy and critic train on, drawn by their rewards after advantages are computed; null trains on
    each rollout."""
    critic: CriticConfig = CriticConfig()
    """Value model, and its training."""

    @property
    def trained_models(self) -> Mapping[str, CriticConfig | ProcessRewardConfig]:
        return {"critic": self.critic}

    @property
    def critic_warmup_steps(self) -> int:
        return self.critic.warmup_steps

    def run_faults(self, run: Run) -> Iterator[str]:
        """Faults of a critic's warm-up without rollouts."""
        yield from super().run_faults(run)
        if self.critic.warmup_steps and run.trainer.batch_selection.type == "warmup":
            yield (
                "algorithm.critic.warmup_steps trains the critic on the rollouts of the first steps, and "
                "trainer.batch_selection warmup has no rollouts in its first steps; remove one of the two"
            )


class CustomConfig(PolicyGradientConfig):
    """A user's own advantage function, loss function, or both; see `strop help algorithms#custom-algorithms`."""

    type: Literal["custom"] = "custom"
    advantages: str | None = None
    """Advantage function, as `file.py:name` or a dotted path: `f(batch: RolloutBatch) -> Tensor`, one value
    per rollout or per token; null for GRPO's advantages."""
    loss: str | None = None
    """Loss function, as `file.py:name` or a dotted path: `f(micro_batch, outputs, counts) -> LossOutput`;
    null for the built-in loss with the options of this section."""
    ref_logprobs: bool = False
    """Whether the reference model's log-probs are computed for `loss`, as `micro_batch.ref_logprobs`."""

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

    @property
    def user_functions(self) -> Mapping[str, str]:
        named = {"advantages": self.advantages, "loss": self.loss}
        return {field: name for field, name in named.items() if name is not None}

    @property
    def needs_reference_model(self) -> bool:
        """Whether a penalty compares with the reference, or `loss` reads its log-probs."""
        return self.ref_logprobs or super().needs_reference_model

    @property
    def needs_reference_logprobs(self) -> bool:
        return self.ref_logprobs or super().needs_reference_logprobs

    @property
    def ratio_vanishes_at_zero_advantage(self) -> bool:
        """False with a loss function of the user, which is not known to."""
        return self.loss is None and super().ratio_vanishes_at_zero_advantage


_BUILT_IN_LOSS_OPTIONS = (
    "policy_loss",
    "aggregation",
    "kl_loss",
    "entropy_coef",
    "importance_correction",
    "rejection",
)


class SftConfig(BaseOfflineConfig):
    """Supervised fine-tuning: the cross entropy of demonstrations, averaged over their tokens."""

    type: Literal["sft"] = "sft"
    token_weight: TokenWeight = "none"
    """Weight of each token: 1, its probability p (dynamic fine-tuning, arXiv 2508.05629), or p (1 - p) (arXiv
    2508.11408)."""

    @property
    def rows(self) -> Rows:
        return "demonstrations"


CriticFreeConfig = (
    GrpoConfig
    | GrpoPasskConfig
    | RlooConfig
    | OpoConfig
    | GdpoConfig
    | GigpoConfig
    | OptimalTokenBaselineConfig
    | GpgConfig
    | OpmdConfig
    | ReinforcePlusPlusConfig
    | ReinforcePlusPlusBaselineConfig
    | RemaxConfig
    | PrimeConfig
    | ReinforceConfig
    | RaftConfig
    | AsymReConfig
    | SelfPlayConfig
    | OnlineDpoConfig
    | DistillationOnlyConfig
    | MixConfig
    | CustomConfig
)
"""Algorithms that learn from sampled rollouts without a critic."""
RolloutAlgorithmConfig = CriticFreeConfig | PpoConfig
"""Algorithms that learn from sampled rollouts."""
OfflineAlgorithmConfig = SftConfig | PreferenceConfig | UnpairedConfig | RewardModelingConfig
"""Algorithms that learn from demonstrations, pairs, labels or scores, without sampling."""
AlgorithmConfig = Annotated[RolloutAlgorithmConfig | OfflineAlgorithmConfig, Field(discriminator="type")]
