"""`algorithm`: advantages and losses, one class for each algorithm and policy loss."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from strop.config.schema.base import Section, type_shorthand
from strop.config.schema.critic import CriticConfig
from strop.config.schema.distillation import DistillationConfig, SampledKlLossConfig
from strop.config.schema.group_baselines import (
    AsymReConfig,
    GdpoConfig,
    GigpoConfig,
    GpgConfig,
    GrpoConfig,
    GrpoPasskConfig,
    MixConfig,
    OpmdConfig,
    OpoConfig,
    OptimalTokenBaselineConfig,
    RlooConfig,
    TokenWeight,
)
from strop.config.schema.policy_gradient import (
    Aggregation,
    GroupBaselineConfig,
    PolicyGradientConfig,
)
from strop.config.schema.policy_loss import GpgLossConfig, PolicyLossConfig, SelfPlayLossConfig
from strop.config.schema.preference import PreferenceConfig, UnpairedConfig
from strop.config.schema.process_reward import OversamplingConfig, ProcessRewardConfig
from strop.config.schema.reward_modeling import RewardModelingConfig


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


class SelfPlayConfig(PolicyGradientConfig):
    """Self-play preference optimization: the log-ratio of a response is fitted to its reward (SPPO, arXiv
    2405.00675)."""

    type: Literal["self_play"] = "self_play"
    eta: float = Field(1.0, gt=0)
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
    rollouts_per_task: int = Field(2, gt=0, json_schema_extra={"minimum": 2})
    """Responses sampled per task, at least 2; the best and the worst of them are the pair."""
    beta: float = Field(0.1, gt=0)
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


class DistillationOnlyConfig(PolicyGradientConfig):
    """On-policy distillation (arXiv 2306.13649, 2306.08543): only the teacher gives a signal, and the reward is
    measured."""

    type: Literal["distillation"] = "distillation"
    rollouts_per_task: int = Field(1, gt=0)
    """Responses sampled per task; they are not compared with each other."""
    distillation: DistillationConfig
    """Divergence from a teacher, in the loss or as a reward of each token."""
    demonstration_fraction: float = Field(0.0, ge=0, lt=1)
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


class PrimeConfig(GroupBaselineConfig):
    """REINFORCE with the rewards of tokens by a process reward model that learns from outcomes (PRIME, arXiv
    2502.01456)."""

    type: Literal["prime"] = "prime"
    outcome_coef: float = Field(5.0, ge=0)
    """Weight of the reward of a response, which is between 0 and 1."""
    process_coef: float = Field(5.0, ge=0)
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


class RemaxConfig(PolicyGradientConfig):
    """REINFORCE with the reward of the task's greedy response as the baseline (arXiv 2310.10505)."""

    type: Literal["remax"] = "remax"
    rollouts_per_task: int = Field(1, gt=0)
    """Responses sampled per task, in addition to the greedy one, which is never trained on."""


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
    token_weight: TokenWeight = "none"
    """Weight of each token: 1, its probability p (dynamic fine-tuning, arXiv 2508.05629), or p (1 - p) (arXiv
    2508.11408)."""


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


def demonstrations_field(algorithm: RolloutAlgorithmConfig | OfflineAlgorithmConfig) -> str | None:
    """The field that names the demonstrations which an algorithm trains on together with its rollouts; None where it
    has none."""
    if isinstance(algorithm, MixConfig):
        return "expert"
    if isinstance(algorithm, DistillationOnlyConfig) and algorithm.demonstration_fraction > 0:
        return "demonstrations"
    return None


def trains_on_pairs(algorithm: RolloutAlgorithmConfig | OfflineAlgorithmConfig) -> bool:
    """Whether a row of the training data is a pair of responses."""
    if isinstance(algorithm, RewardModelingConfig):
        return algorithm.loss == "bradley_terry"
    return isinstance(algorithm, PreferenceConfig)


def reward_modeling(
    algorithm: RolloutAlgorithmConfig | OfflineAlgorithmConfig,
) -> RewardModelingConfig | None:
    """The section of an algorithm that trains a reward model; None for another."""
    return algorithm if isinstance(algorithm, RewardModelingConfig) else None
