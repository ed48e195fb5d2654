"""`algorithm.importance_correction` and `algorithm.rejection`: corrections for rollouts of another policy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from strop.config.schema.base import Section


class ImportanceCorrectionConfig(Section):
    """Importance weights of the loss, the trainer's over the sampler's probability, truncated or masked."""

    level: Literal["token", "sequence", "geometric"] = "token"
    """Level of the weights: one per token; one per response, the product of its tokens' weights; or one per
    response, their geometric mean."""
    cap: float = Field(2.0, gt=0)
    """Maximum weight; larger weights are truncated to it."""
    floor: float | None = Field(None, gt=0)
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
    low: float | None = Field(None, gt=0)
    """Minimum of the ratio, for k1; null for no minimum."""
    high: float | None = Field(None, gt=0)
    """Maximum of the ratio for k1, of the divergence in nats for k2 and k3; null for no maximum."""

    def faults(self) -> Iterator[str]:
        """Faults between the fields."""
        if self.estimator != "k1" and self.low is not None:
            yield f"low ({self.low}) is a minimum of the ratio, which {self.estimator} is not; write only high"
        if self.high is None and (self.low is None or self.estimator != "k1"):
            yield "the rule has no bound, so that it rejects nothing; write high"
        if self.low is not None and self.high is not None and self.low > self.high:
            yield f"low ({self.low}) is above high ({self.high}), so that everything is rejected; swap them"
