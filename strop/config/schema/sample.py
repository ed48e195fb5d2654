"""`trainer.sample`: what a step of the trainer learns from."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from strop.config.schema.base import Section, kind_or
from strop.config.units import Amount, Steps, StepsOrNone


class DefaultSample(Section):
    """The groups that the buffer gives next."""

    type: Literal["default"] = "default"


class WarmUpSample(Section):
    """Given answers in the first steps, by the loss of sft; after them rollouts, which begin only then."""

    type: Literal["warmup"] = "warmup"
    steps: Steps
    """So many steps learn from given answers, each with as many updates as any other."""
    answers: str | None = None
    """The name of those answers in `data.auxiliary`; left out, the only ones there."""
    answers_per_update: int | None = Field(None, gt=0)
    """Answers that make one update; left out, as many as an update has rollouts."""


class StalenessSample(Section):
    """The groups that the buffer gives next, without those that are too old: they are thrown away."""

    type: Literal["staleness"] = "staleness"
    max_staleness: StepsOrNone = Amount(2, "steps")
    """A group is too old when the weights that sampled it are more steps older than those that would learn
    from it."""


Sample = Annotated[
    Annotated[DefaultSample | WarmUpSample | StalenessSample, Field(discriminator="type")], kind_or("default")
]
