"""`algorithm.policy_loss`: one class for each loss of probability ratios; corrections for rollouts of other weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field

from strop.config.schema.base import Section


class BasePolicyLossConfig(Section):
    """Questions of an algorithm to its policy loss."""

    selects_by_covariance: ClassVar[bool] = False
    """Whether it selects tokens by the old policy's log-probs of all tokens of an update."""
    sums_over_response: ClassVar[bool] = False
    """Whether it is a sum over the tokens of a response, which `seq-mean-token-sum` averages over responses."""

    @property
    def vanishes_at_zero_advantage(self) -> bool:
        """Whether a target whose advantage is 0 has the loss 0 and no gradient, whatever its log-probs are."""
        return True


class ClippedLossConfig(BasePolicyLossConfig):
    """PPO's clipped surrogate (arXiv 1707.06347); DAPO's two sides (2503.14476); dual clip (1912.09729)."""

    type: Literal["clip"] = "clip"
    clip_low: float = Field(default=0.2, ge=0, le=1)
    """Lower clip range: the ratio to the old policy is clipped at 1 - clip_low; 1 for no lower bound."""
    clip_high: float = Field(default=0.2, ge=0)
    """Upper clip range: the ratio to the old policy is clipped at 1 + clip_high."""
    dual_clip: float | None = Field(default=3.0, gt=1)
    """Upper bound of the ratio for negative advantages (dual clip); null for no bound."""


class GspoLossConfig(BasePolicyLossConfig):
    """Clipped surrogate with one ratio per response, the geometric mean of its tokens' ratios
    (2507.18071)."""

    type: Literal["gspo"] = "gspo"
    clip_low: float = Field(default=3e-4, ge=0, lt=1)
    """Lower clip range: the response's ratio is clipped at 1 - clip_low."""
    clip_high: float = Field(default=4e-4, ge=0)
    """Upper clip range: the response's ratio is clipped at 1 + clip_high."""


class CispoLossConfig(BasePolicyLossConfig):
    """REINFORCE, weighted by a clipped ratio without a gradient (arXiv 2506.13585)."""

    type: Literal["cispo"] = "cispo"
    clip_low: float | None = Field(default=None, ge=0, lt=1)
    """Lower clip range: the ratio is clipped at 1 - clip_low; null for no lower bound, as in the paper."""
    clip_high: float = Field(default=4.0, ge=0)
    """Upper clip range: the ratio is clipped at 1 + clip_high."""
    mask_clipped: bool = False
    """Drop tokens that PPO's clipping would leave without a gradient, as Trinity-RFT does."""


class GpgLossConfig(BasePolicyLossConfig):
    """Plain policy gradient, without ratio and clipping (arXiv 2504.02546)."""

    type: Literal["gpg"] = "gpg"


class OpmdLossConfig(BasePolicyLossConfig):
    """Online policy mirror descent: the plain policy gradient divided by 1 + tau (arXiv 2505.17826)."""

    type: Literal["opmd"] = "opmd"
    tau: float = Field(default=1.0, ge=0)
    """Strength of the regularization towards the current policy."""


class ToprLossConfig(BasePolicyLossConfig):
    """REINFORCE, where a token with an advantage up to `threshold` is weighted by its ratio, at most 1 (TOPR,
    arXiv 2503.14286)."""

    type: Literal["topr"] = "topr"
    threshold: float = 0.0
    """Advantage above which a token has the weight 1."""


class SppoLossConfig(BasePolicyLossConfig):
    """Log-ratio times advantage, for tokens whose ratio is within bounds (sPPO, arXiv 2108.05828)."""

    type: Literal["sppo"] = "sppo"
    clip: float = Field(default=0.3, gt=0)
    """Clip range: a token counts where its ratio is between 1 / (1 + clip) and 1 + clip."""


class RecLossConfig(BasePolicyLossConfig):
    """REINFORCE with clipping, weights and a regularizer for off-policy rollouts (REC, arXiv 2509.24203)."""

    type: Literal["rec"] = "rec"
    clipping: Literal["none", "one_side", "two_sides", "ring"] = "none"
    """Tokens that count: all; those whose ratio has not passed the bound in the advantage's direction; those
    within both bounds; or those and, in the other direction, those beyond the outer bounds."""
    clip_low: float = Field(default=0.2, gt=0, le=1)
    """Lower clip range: the bound is 1 - clip_low."""
    clip_high: float = Field(default=0.2, gt=0)
    """Upper clip range: the bound is 1 + clip_high."""
    ring_low: float = Field(default=0.6, gt=0, le=1)
    """Outer lower clip range of `ring`: the bound is 1 - ring_low."""
    ring_high: float = Field(default=2.0, gt=0)
    """Outer upper clip range of `ring`: the bound is 1 + ring_high."""
    weight: Literal["none", "ratio", "advantage"] = "none"
    """Weight of a token: 1, its ratio without a gradient, or exp(advantage / temperature)."""
    temperature: float = Field(default=1.0, gt=0)
    """Divisor of the advantage in the weight `advantage`."""
    regularizer: Literal["none", "k2", "forward_kl"] = "none"
    """Regularizer towards the old policy: the squared log-ratio, or the cross entropy of its samples."""
    regularizer_coef: float = Field(default=0.0, ge=0)
    """Coefficient of the regularizer."""

    @property
    def vanishes_at_zero_advantage(self) -> bool:
        """False with a regularizer, which all tokens have."""
        return self.regularizer == "none" or self.regularizer_coef == 0


class SapoLossConfig(BasePolicyLossConfig):
    """Ratio in a sigmoid gate instead of clipping: soft adaptive policy optimization (arXiv 2511.20347)."""

    type: Literal["sapo"] = "sapo"
    tau_pos: float = Field(default=1.0, gt=0)
    """Temperature of the gate for positive advantages: a larger one ends the gradient closer to ratio 1."""
    tau_neg: float = Field(default=1.05, gt=0)
    """Temperature of the gate for other advantages."""
    gate: Literal["objective", "weight"] = "objective"
    """Use of the gate: as the objective, as in the paper and verl, or as a weight of the log-prob without a
    gradient, as in Trinity-RFT."""


class GmpoLossConfig(BasePolicyLossConfig):
    """Geometric mean of a response's ratios, each clipped on its own (GMPO, arXiv 2507.20673)."""

    type: Literal["gmpo"] = "gmpo"
    clip_low: float = Field(default=0.4, ge=0)
    """Lower clip range: the log of a token's ratio is clipped at -clip_low."""
    clip_high: float = Field(default=0.4, ge=0)
    """Upper clip range: the log of a token's ratio is clipped at clip_high."""


class _DppoLossConfig(BasePolicyLossConfig):
    ratio_cap: float = Field(default=20.0, gt=0)
    """Maximum weight of a token; larger ratios are truncated to it."""


class DppoTvLossConfig(_DppoLossConfig):
    """REINFORCE, weighted by the ratio, for tokens within a total variation of the old policy (DPPO, arXiv
    2602.04879)."""

    type: Literal["dppo_tv"] = "dppo_tv"
    divergence_low: float = Field(default=0.15, ge=0)
    """Maximum decrease of a token's probability, for negative advantages."""
    divergence_high: float = Field(default=0.15, ge=0)
    """Maximum increase of a token's probability, for positive advantages."""


class DppoKlLossConfig(_DppoLossConfig):
    """REINFORCE, weighted by the ratio, for tokens within a KL divergence of the old policy (DPPO, arXiv
    2602.04879)."""

    type: Literal["dppo_kl"] = "dppo_kl"
    divergence_low: float = Field(default=0.05, ge=0)
    """Maximum KL divergence, in nats, of a token that became less likely, for negative advantages."""
    divergence_high: float = Field(default=0.05, ge=0)
    """Maximum KL divergence, in nats, of a token that became more likely, for positive advantages."""


class ImportanceSamplingLossConfig(BasePolicyLossConfig):
    """Ratio times advantage, without clipping."""

    type: Literal["importance_sampling"] = "importance_sampling"


class ClipCovLossConfig(BasePolicyLossConfig):
    """PPO's clipped surrogate without some tokens of high covariance, against the collapse of the entropy (Clip-Cov,
    arXiv 2505.22617)."""

    type: Literal["clip_cov"] = "clip_cov"
    selects_by_covariance: ClassVar[bool] = True
    clip_low: float = Field(default=0.2, ge=0, le=1)
    """Lower clip range: the ratio to the old policy is clipped at 1 - clip_low; 1 for no lower bound."""
    clip_high: float = Field(default=0.2, ge=0)
    """Upper clip range: the ratio to the old policy is clipped at 1 + clip_high."""
    token_fraction: float = Field(default=0.0002, gt=0, le=1)
    """Fraction of an update's tokens without a gradient, at least one token; chosen at random between the bounds."""
    covariance_low: float = 1.0
    """Lower bound of the covariance of log-prob and advantage of the chosen tokens."""
    covariance_high: float = 5.0
    """Upper bound of the covariance of the chosen tokens."""

    def faults(self) -> Iterator[str]:
        """Faults between the fields."""
        if self.covariance_low >= self.covariance_high:
            yield (
                f"covariance_low ({self.covariance_low}) is not below covariance_high ({self.covariance_high}), so no "
                "token lies between them; write a smaller covariance_low"
            )


class KlCovLossConfig(BasePolicyLossConfig):
    """Ratio times advantage, with a KL penalty for the tokens of highest covariance, against the collapse of the
    entropy (KL-Cov, arXiv 2505.22617)."""

    type: Literal["kl_cov"] = "kl_cov"
    selects_by_covariance: ClassVar[bool] = True
    token_fraction: float = Field(default=0.0002, gt=0, le=1)
    """Fraction of an update's tokens with the penalty, at least one token: those of highest covariance."""
    kl_coef: float = Field(default=1.0, ge=0)
    """Coefficient of the absolute log-ratio of these tokens."""

    @property
    def vanishes_at_zero_advantage(self) -> bool:
        """False with the penalty, which selected tokens have whatever their advantage."""
        return self.kl_coef == 0


class M2poLossConfig(BasePolicyLossConfig):
    """Ratio times advantage, without the tokens that are furthest from the old policy (M2PO, arXiv 2510.01161)."""

    type: Literal["m2po"] = "m2po"
    max_second_moment: float = Field(default=0.04, ge=0)
    """Maximum mean of the squared log-ratios, over an update's tokens that move away from the old policy."""


class DroLossConfig(BasePolicyLossConfig):
    """Log-prob times advantage, with the squared log-ratio as the regularizer (DRO, arXiv 2405.19107)."""

    type: Literal["dro"] = "dro"
    beta: float = Field(default=1.0, gt=0)
    """Coefficient of half the squared log-ratio."""

    @property
    def vanishes_at_zero_advantage(self) -> bool:
        return False


class GvpoLossConfig(BasePolicyLossConfig):
    """Squared difference between the implicit reward of a response and its reward, both relative to the group (GVPO,
    arXiv 2504.19599)."""

    type: Literal["gvpo"] = "gvpo"
    sums_over_response: ClassVar[bool] = True
    beta: float = Field(default=0.1, gt=0)
    """Factor between a response's log-ratio and its implicit reward; a smaller one allows a larger distance from the
    old policy."""

    @property
    def vanishes_at_zero_advantage(self) -> bool:
        return False


class SelfPlayLossConfig(BasePolicyLossConfig):
    """Squared difference between the log-ratio of a response and its scaled advantage (SPPO, arXiv 2405.00675)."""

    type: Literal["self_play"] = "self_play"
    sums_over_response: ClassVar[bool] = True
    eta: float = Field(default=1.0, gt=0)
    """Factor of the advantage: a response's log-ratio to the old policy is fitted to eta times its advantage."""

    @property
    def vanishes_at_zero_advantage(self) -> bool:
        return False


PolicyLossConfig = (
    ClippedLossConfig
    | GspoLossConfig
    | CispoLossConfig
    | GpgLossConfig
    | OpmdLossConfig
    | ToprLossConfig
    | SppoLossConfig
    | RecLossConfig
    | SapoLossConfig
    | GmpoLossConfig
    | DppoTvLossConfig
    | DppoKlLossConfig
    | ImportanceSamplingLossConfig
    | DroLossConfig
    | ClipCovLossConfig
    | KlCovLossConfig
    | M2poLossConfig
    | GvpoLossConfig
    | SelfPlayLossConfig
)


class ImportanceCorrectionConfig(Section):
    """Importance weights of the loss, the trainer's over the sampler's probability, truncated or masked."""

    level: Literal["token", "sequence", "geometric"] = "token"
    """Level of the weights: one per token; one per response, the product of its tokens' weights; or one per
    response, their geometric mean."""
    cap: float = Field(default=2.0, gt=0)
    """Maximum weight; larger weights are truncated to it."""
    floor: float | None = Field(default=None, gt=0)
    """Minimum weight: weights below it, and weights above `cap`, become 0 (IcePop, arXiv 2510.18855); null only
    truncates."""
    normalize: bool = False
    """Divide the weights by their mean over the step: over its tokens, or over its responses."""

    def faults(self) -> Iterator[str]:
        """Faults between the fields."""
        if self.floor is not None and self.floor > self.cap:
            yield f"floor ({self.floor}) is above cap ({self.cap}), so that every weight is 0; swap them"


class RejectionRuleConfig(Section):
    """Rule that excludes tokens or responses from the loss, where trainer and sampler differ too much."""

    estimator: Literal["k1", "k2", "k3"] = "k1"
    """Measure of a token's difference, from the ratio r of the trainer's to the sampler's probability: k1 is r
    itself, k2 is (log r)^2 / 2, k3 is r - 1 - log r."""
    over: Literal["token", "sum", "mean", "max"] = "token"
    """Unit that is rejected: a token; or a response, by the sum, mean or maximum over its tokens, which for k1 is
    the product of the ratios, their geometric mean, or each ratio."""
    low: float | None = Field(default=None, gt=0)
    """Minimum of the ratio, for k1; null for no minimum."""
    high: float | None = Field(default=None, gt=0)
    """Maximum of the ratio for k1, of the divergence in nats for k2 and k3; null for no maximum."""

    def faults(self) -> Iterator[str]:
        """Faults between the fields."""
        if self.estimator != "k1" and self.low is not None:
            yield f"low ({self.low}) is a minimum of the ratio, which {self.estimator} is not; write only high"
        if self.high is None and (self.low is None or self.estimator != "k1"):
            yield "the rule has no bound, so that it rejects nothing; write high"
        if self.low is not None and self.high is not None and self.low > self.high:
            yield f"low ({self.low}) is above high ({self.high}), so that everything is rejected; swap them"
