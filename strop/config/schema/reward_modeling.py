"""`algorithm` of type reward_model: training of a model that scores a response with one number."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from strop.config.schema.base import Section
from strop.config.schema.critic import HeadInit


class RewardModelingConfig(Section):
    """Reward modeling: a sequence classifier with one output, from pairs (Bradley-Terry, arXiv 2203.02155) or from
    scores (regression)."""

    type: Literal["reward_model"] = "reward_model"
    loss: Literal["bradley_terry", "squared_error"] = "bradley_terry"
    """`bradley_terry`, -log sigmoid of the difference between the rewards of `chosen` and `rejected`; or
    `squared_error`, between the reward of `response` and its `score`."""
    centering_coef: float = Field(0.0, ge=0)
    """Weight of the squared sum of a pair's two rewards, which keeps their mean near 0 (arXiv 2312.09244, eq. 2); 0 for
    none. The paper's is 0.01."""
    head: HeadInit = "zero"
    """Initial weights of the head `score`: `zero`, so that the first rewards are 0; `normal`, a normal distribution
    with the model's `initializer_range` as standard deviation, as in transformers; or `score`, those of the reward
    model in `model.path`, whose training continues."""
    append_eos: bool = False
    """Whether the tokenizer's end token follows a response that is read without a chat template, as TRL appends it;
    then write it for the reward model of later runs, too (`reward.models`)."""

    def faults(self) -> Iterator[str]:
        """Faults between the fields."""
        if self.centering_coef and self.loss == "squared_error":
            yield "centering_coef has no effect on squared_error, whose scores set the mean of the rewards; remove it"
