"""`trainer.batch_selection`: choice of the experiences that a trainer step learns from."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from strop.config.schema.base import Section, type_shorthand
from strop.config.units import Amount, NonNegativeSteps, Steps


class DefaultSelectionConfig(Section):
    """Groups in the order in which the buffer returns them."""

    type: Literal["default"] = "default"


class WarmupSelectionConfig(Section):
    """Supervised warm-up: the first steps train on demonstrations with the SFT loss; sampling starts after
    them."""

    type: Literal["warmup"] = "warmup"
    steps: Steps
    """Number of first steps that train on demonstrations, with as many updates each as any other step."""
    demonstrations: str | None = None
    """Name of the set in `data.demonstrations`; the only set if omitted."""
    demonstrations_per_update: int | None = Field(None, gt=0)
    """Number of demonstrations per update; the number of rollouts per update if omitted."""


class StalenessSelectionConfig(Section):
    """Groups in the order in which the buffer returns them, without those above a maximum staleness, which
    are dropped."""

    type: Literal["staleness"] = "staleness"
    max_staleness: NonNegativeSteps = Amount(2, "steps")
    """Maximum number of steps between the weights that sampled a group and those that train on it."""


BatchSelectionConfig = Annotated[
    Annotated[
        DefaultSelectionConfig | WarmupSelectionConfig | StalenessSelectionConfig, Field(discriminator="type")
    ],
    type_shorthand("default"),
]
