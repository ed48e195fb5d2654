"""`algorithm`: what is learned from scored answers."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from strop.config.schema.base import Section

KlEstimator = Literal["k1", "abs", "k2", "k3"]
Aggregation = Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]


class KlLoss(Section):
    """A penalty in the loss for leaving the reference, which is the model as it was at the start."""

    estimator: KlEstimator = "k3"
    """How the divergence is estimated from the sampled tokens (joschu.net/blog/kl-approx.html)."""
    coef: float = Field(0.001, ge=0)
    """What the penalty is multiplied with."""


class ClippedLoss(Section):
    """PPO's clipped surrogate (arXiv 1707.06347); DAPO's two sides (2503.14476); dual clip (1912.09729)."""

    type: Literal["clip"] = "clip"
    clip_low: float = Field(0.2, ge=0, lt=1)
    """The ratio to the old policy counts down to 1 - clip_low."""
    clip_high: float = Field(0.2, ge=0)
    """The ratio to the old policy counts up to 1 + clip_high."""
    dual_clip: float | None = Field(3.0, gt=1)
    """Where the advantage is negative, the ratio counts up to this; null for no such bound."""


class Grpo(Section):
    """Group relative policy optimization (arXiv 2402.03300)."""

    type: Literal["grpo"] = "grpo"
    rollouts_per_task: int = Field(8, ge=2)
    """Answers sampled to each task; they are compared with one another."""
    divide_by_std: bool = True
    """Divide advantages by the group's standard deviation; false is Dr. GRPO (arXiv 2503.20783)."""
    std_epsilon: float = Field(1e-6, gt=0)
    """Added to the standard deviation."""
    policy_loss: ClippedLoss = ClippedLoss()
    """What is made of ratios and advantages."""
    aggregation: Aggregation = "token-mean"
    """How the losses of tokens become one number."""
    kl_loss: KlLoss | None = None
    """A penalty for leaving the reference; none when left out, and then no reference is computed."""
    entropy_coef: float = Field(0.0, ge=0)
    """The entropy of the answers' tokens, times this, is added to what is maximised."""


Algorithm = Grpo
