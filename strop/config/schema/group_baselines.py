"""Algorithms whose baseline is computed from the rewards of a group."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from strop.config.schema.base import Section, type_shorthand
from strop.config.schema.policy_gradient import GroupBaselineConfig
from strop.config.schema.policy_loss import GpgLossConfig, OpmdLossConfig, PolicyLossConfig


class GrpoConfig(GroupBaselineConfig):
    """Group relative policy optimization (arXiv 2402.03300)."""

    type: Literal["grpo"] = "grpo"
    divide_by_std: bool = True
    """Divide advantages by the standard deviation; false is Dr. GRPO (arXiv 2503.20783)."""
    std_over: Literal["group", "step"] = "group"
    """Rewards whose standard deviation divides: those of the group, or those of all rollouts of the step."""
    std_epsilon: float = Field(1e-6, gt=0)
    """Constant added to the standard deviation."""
    min_reward_std: float | None = Field(None, ge=0)
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


class GigpoConfig(GroupBaselineConfig):
    """Group-in-group policy optimization for agents: GRPO's advantages, plus a comparison of the turns that begin in
    the same state of the environment (GiGPO, arXiv 2505.10978)."""

    type: Literal["gigpo"] = "gigpo"
    turn_weight: float = Field(1.0, ge=0)
    """Weight of the advantages of turns (omega); those of rollouts have the weight 1."""
    gamma: float = Field(1.0, ge=0, le=1)
    """Discount factor per turn, in the returns of turns; 1 for no discount."""
    states_over: Literal["group", "step"] = "group"
    """Turns that are compared where their states are equal: those of the group, or those of all rollouts of the
    step."""
    divide_by_std: bool = False
    """Divide advantages by the standard deviation of the rewards, or returns, that are compared."""
    std_epsilon: float = Field(1e-6, gt=0)
    """Constant added to the standard deviation."""


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


class AsymReConfig(GroupBaselineConfig):
    """REINFORCE with the group's mean reward plus a shift as the baseline (AsymRE, arXiv 2506.20520)."""

    type: Literal["asymre"] = "asymre"
    baseline_shift: float = -0.1
    """Number added to the mean; below 0, good responses count more than bad ones."""


TokenWeight = Literal["none", "p", "p_one_minus_p"]
"""Weight of a demonstration's token of probability p: 1, p (arXiv 2508.05629), or CHORD's phi (arXiv 2508.11408)."""


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
    expert_weight: TokenWeight = "none"
    """Weight of each token of a demonstration: 1, its probability p, or p (1 - p), which is CHORD's phi."""
    expert_fraction: float = Field(0.5, gt=0, lt=1)
    """Fraction of an update's sequences that are demonstrations, added to a full update of rollouts."""
    divide_by_std: bool = True
    """Divide advantages by the group's standard deviation."""
    std_epsilon: float = Field(1e-6, gt=0)
    """Constant added to the standard deviation."""
