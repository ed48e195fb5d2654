"""`algorithm`: what is learned from scored answers."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from strop.config.schema.base import Section, kind_or
from strop.config.schema.critic import Critic

SampledKl = Literal["k1", "abs", "k2", "k3"]
KlEstimator = Literal[SampledKl, "full"]
Aggregation = Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]


class KlLoss(Section):
    """A penalty in the loss for leaving the reference, which is the model as it was at the start."""

    estimator: KlEstimator = "k3"
    """How the divergence is estimated from sampled tokens (joschu.net/blog/kl-approx.html); `full` is exact,
    over the whole vocabulary, and takes a pass through the reference with every update."""
    coef: float = Field(0.001, ge=0)
    """What the penalty is multiplied with."""


class AdaptiveKl(Section):
    """Moves the penalty's coefficient after each step, towards a wanted divergence (arXiv 1909.08593)."""

    target_kl: float = Field(0.1, gt=0)
    """The divergence that is wanted, in nats per token, by the penalty's own estimator."""
    horizon: int = Field(10000, gt=0)
    """Rollouts over which the coefficient can change by a fifth of itself."""


class KlReward(Section):
    """A penalty in the reward, token by token, for leaving the reference."""

    estimator: KlEstimator = "k1"
    """How the divergence is estimated from sampled tokens (joschu.net/blog/kl-approx.html); `full` is exact,
    over the whole vocabulary."""
    coef: float = Field(0.001, ge=0)
    """What the penalty is multiplied with; at the start, where it is adaptive."""
    adaptive: AdaptiveKl | None = None
    """Moves the coefficient; null keeps it as it is."""


class ClippedLoss(Section):
    """PPO's clipped surrogate (arXiv 1707.06347); DAPO's two sides (2503.14476); dual clip (1912.09729)."""

    type: Literal["clip"] = "clip"
    clip_low: float = Field(0.2, ge=0, lt=1)
    """The ratio to the old policy counts down to 1 - clip_low."""
    clip_high: float = Field(0.2, ge=0)
    """The ratio to the old policy counts up to 1 + clip_high."""
    dual_clip: float | None = Field(3.0, gt=1)
    """Where the advantage is negative, the ratio counts up to this; null for no such bound."""


class GspoLoss(Section):
    """The clipped surrogate with one ratio per answer, the geometric mean of its tokens' (2507.18071)."""

    type: Literal["gspo"] = "gspo"
    clip_low: float = Field(3e-4, ge=0, lt=1)
    """The answer's ratio counts down to 1 - clip_low."""
    clip_high: float = Field(4e-4, ge=0)
    """The answer's ratio counts up to 1 + clip_high."""


class CispoLoss(Section):
    """REINFORCE, weighted with a bounded ratio that has no gradient of its own (arXiv 2506.13585)."""

    type: Literal["cispo"] = "cispo"
    clip_low: float | None = Field(None, ge=0, lt=1)
    """The ratio counts down to 1 - clip_low; null for no lower bound, as in the paper."""
    clip_high: float = Field(4.0, ge=0)
    """The ratio counts up to 1 + clip_high."""


class GpgLoss(Section):
    """The plain policy gradient: no ratio, no bound (arXiv 2504.02546)."""

    type: Literal["gpg"] = "gpg"


class OpmdLoss(Section):
    """Online policy mirror descent: the plain policy gradient over 1 + tau (arXiv 2505.17826)."""

    type: Literal["opmd"] = "opmd"
    tau: float = Field(1.0, ge=0)
    """How strongly the policy is held where it is."""


PolicyLoss = ClippedLoss | GspoLoss | CispoLoss | GpgLoss | OpmdLoss


class ImportanceCorrection(Section):
    """Truncated importance sampling: weighs the loss with trainer's over sampler's probability."""

    level: Literal["token", "sequence"] = "token"
    """One weight for each token, or for each answer the product of its tokens'."""
    cap: float = Field(2.0, gt=0)
    """A larger weight counts as this."""


class OverlongPenalty(Section):
    """DAPO's soft punishment of answers that come near the token limit (arXiv 2503.14476, equation 13)."""

    buffer_tokens: int = Field(gt=0)
    """The penalty grows from 0 to `factor` over the last so many tokens before `data.max_response_tokens`."""
    factor: float = Field(1.0, gt=0)
    """What an answer at the limit loses of its reward."""


class DynamicSampling(Section):
    """Groups in which all rewards are equal are replaced by others (DAPO, arXiv 2503.14476)."""

    max_tries: int = Field(10, gt=0)
    """So often a step samples, the first time included; then it trains on the groups that it has."""
    metric: str | None = None
    """The part of the reward that is compared, such as `math` or `math/acc`; the whole when left out."""


class PolicyGradient(Section):
    """What every algorithm has that learns from rollouts of its own."""

    type: str
    rollouts_per_task: int = Field(8, gt=0)
    """Answers sampled to each task."""
    policy_loss: Annotated[PolicyLoss, Field(discriminator="type"), kind_or("clip")] = ClippedLoss()
    """What is made of ratios and advantages."""
    aggregation: Aggregation = "token-mean"
    """How the losses of tokens become one number."""
    kl_loss: KlLoss | None = None
    """A penalty in the loss for leaving the reference; null for none, and then no reference is computed."""
    kl_reward: KlReward | None = None
    """The same in the reward, before advantages are computed; null for none."""
    entropy_coef: float = Field(0.0, ge=0)
    """The entropy of the answers' tokens, times this, is added to what is maximised."""
    importance_correction: ImportanceCorrection | None = None
    """Corrects for a sampler that is not quite the trainer's policy; null for no correction."""
    overlong_penalty: OverlongPenalty | None = None
    """Takes from the reward of answers near the token limit; null for none."""


class GroupBaselined(PolicyGradient):
    """What every algorithm has that compares a task's answers with one another."""

    rollouts_per_task: int = Field(8, gt=0, json_schema_extra={"minimum": 2})
    """Answers sampled to each task, two or more; they are compared with one another."""
    dynamic_sampling: DynamicSampling | None = None
    """Replaces groups that teach nothing; null keeps them."""

    @field_validator("rollouts_per_task")
    @classmethod
    def _enough_to_compare(cls, rollouts: int) -> int:
        if rollouts < 2:
            raise ValueError(
                "1 answer has nothing to be compared with, and nothing could be learned; write 2 or more, "
                "or use reinforce_plus_plus or remax, which take one answer to a task"
            )
        return rollouts


class Grpo(GroupBaselined):
    """Group relative policy optimization (arXiv 2402.03300)."""

    type: Literal["grpo"] = "grpo"
    divide_by_std: bool = True
    """Divide advantages by the group's standard deviation; false is Dr. GRPO (arXiv 2503.20783)."""
    std_epsilon: float = Field(1e-6, gt=0)
    """Added to the standard deviation."""


class GrpoPassk(GroupBaselined):
    """GRPO for the best of k answers: what each adds to the others' best (arXiv 2503.19595, 2505.15201)."""

    type: Literal["grpo_passk"] = "grpo_passk"
    k: int | None = Field(None, ge=2)
    """How many answers one may give, the best of which counts; null for all of a group."""
    divide_by_std: bool = True
    """Divide advantages by the standard deviation of the group's rewards."""
    std_epsilon: float = Field(1e-6, gt=0)
    """Added to the standard deviation."""

    @model_validator(mode="after")
    def _k_within_the_group(self) -> GrpoPassk:
        if self.k is not None and self.k > self.rollouts_per_task:
            raise ValueError(
                f"k ({self.k}) is above rollouts_per_task ({self.rollouts_per_task}): the best of k answers "
                "is estimated from groups of at least k; write a larger rollouts_per_task, or a smaller k"
            )
        return self


class Rloo(GroupBaselined):
    """REINFORCE with the mean of the task's other answers as the baseline (arXiv 2402.14740)."""

    type: Literal["rloo"] = "rloo"


class Opo(GroupBaselined):
    """On-policy optimization: the baseline is the group's mean, weighted by length (arXiv 2505.23585)."""

    type: Literal["opo"] = "opo"


class Gpg(GroupBaselined):
    """Group policy gradient: groups without a signal do not thin the others' (arXiv 2504.02546)."""

    type: Literal["gpg"] = "gpg"
    policy_loss: Annotated[PolicyLoss, Field(discriminator="type"), kind_or("gpg")] = GpgLoss()
    """What is made of ratios and advantages."""


class MeanBaseline(Section):
    """The mean of the group's rewards."""

    type: Literal["mean"] = "mean"


class LogAvgExpBaseline(Section):
    """tau log mean exp(reward / tau): from the mean, for a large tau, to the highest, for a small one."""

    type: Literal["log_avg_exp"] = "log_avg_exp"
    tau: float = Field(1.0, gt=0)
    """In units of the reward; the policy loss's own."""


OpmdBaseline = Annotated[MeanBaseline | LogAvgExpBaseline, Field(discriminator="type"), kind_or("mean")]


class Opmd(GroupBaselined):
    """Online policy mirror descent (Trinity-RFT, arXiv 2505.17826; Kimi k1.5, arXiv 2501.12599)."""

    type: Literal["opmd"] = "opmd"
    baseline: OpmdBaseline = MeanBaseline()
    """What a reward is compared with."""
    policy_loss: Annotated[PolicyLoss, Field(discriminator="type"), kind_or("opmd")] = OpmdLoss()
    """What is made of ratios and advantages."""


class ReinforcePlusPlus(PolicyGradient):
    """REINFORCE with returns that are normalised over the whole step (arXiv 2501.03262)."""

    type: Literal["reinforce_plus_plus"] = "reinforce_plus_plus"
    gamma: float = Field(1.0, ge=0, le=1)
    """What a reward counts for the token before; 1 for no discount."""


class ReinforcePlusPlusBaseline(GroupBaselined):
    """REINFORCE++ on rewards less their group's mean (arXiv 2501.03262)."""

    type: Literal["reinforce_plus_plus_baseline"] = "reinforce_plus_plus_baseline"


class Remax(PolicyGradient):
    """REINFORCE with the reward of the task's greedy answer as the baseline (arXiv 2310.10505)."""

    type: Literal["remax"] = "remax"
    rollouts_per_task: int = Field(1, gt=0)
    """Answers sampled to each task, beside the greedy one, which is never trained on."""


class Mix(GroupBaselined):
    """GRPO on fresh rollouts and SFT on an expert's answers in one update (Trinity-RFT's `mix`)."""

    type: Literal["mix"] = "mix"
    expert: str | None = None
    """The name of the expert's answers in `data.auxiliary`; left out, the only ones there."""
    mu: float = Field(0.1, gt=0, lt=1)
    """The loss is (1 - mu) times GRPO's and mu times the cross entropy of the expert's answers."""
    expert_share: float = Field(0.5, gt=0, lt=1)
    """Share of an update's sequences that are the expert's, beside a full update of rollouts."""
    divide_by_std: bool = True
    """Divide advantages by the group's standard deviation."""
    std_epsilon: float = Field(1e-6, gt=0)
    """Added to the standard deviation."""


class Ppo(PolicyGradient):
    """Proximal policy optimization: advantages by GAE, with a critic (arXiv 1707.06347, 1506.02438)."""

    type: Literal["ppo"] = "ppo"
    rollouts_per_task: int = Field(1, gt=0)
    """Answers sampled to each task; they are not compared with one another."""
    gamma: float = Field(1.0, ge=0, le=1)
    """What a reward counts for the token before; 1 for no discount."""
    lam: float = Field(1.0, ge=0, le=1)
    """How far advantages go by rewards (1: no bias) rather than by the critic (0: least noise)."""
    whiten: bool = True
    """Bring the advantages of a step to mean 0 and standard deviation 1."""
    critic: Critic = Critic()
    """The value model, and how it learns."""


class Sft(Section):
    """Supervised fine-tuning: the cross entropy of given answers, averaged over their tokens."""

    type: Literal["sft"] = "sft"


class Dpo(Section):
    """Direct preference optimization: raises chosen answers over rejected ones (arXiv 2305.18290)."""

    type: Literal["dpo"] = "dpo"
    beta: float = Field(0.1, gt=0)
    """How strongly the policy is held to the reference, which is the model as it was at the start."""
    label_smoothing: float = Field(0.0, ge=0, lt=0.5)
    """Share of the pairs whose labels are taken to be the wrong way round (conservative DPO)."""


WithoutCritic = (
    Grpo | GrpoPassk | Rloo | Opo | Gpg | Opmd | ReinforcePlusPlus | ReinforcePlusPlusBaseline | Remax | Mix
)
"""Learns from rollouts of its own, and from their rewards alone."""
RolloutAlgorithm = WithoutCritic | Ppo
"""Learns from rollouts of its own."""
OfflineAlgorithm = Sft | Dpo
"""Learns from given answers; nothing is sampled to train on."""
Algorithm = Annotated[RolloutAlgorithm | OfflineAlgorithm, Field(discriminator="type")]
