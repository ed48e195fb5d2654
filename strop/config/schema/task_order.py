"""`data.order`: the order in which training tasks are taken."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from strop.config.schema.base import Section, TypeShorthand


class ColumnOrderConfig(Section):
    """Tasks in the order of a column, such as a difficulty: the same curriculum in each epoch."""

    type: Literal["column"] = "column"
    column: str
    """Column with a number, or with text, which is sorted by `values` or else alphabetically."""
    descending: bool = False
    """Whether the largest value comes first."""
    values: tuple[str, ...] = ()
    """Every value of a column of text, in the order of the tasks, such as `[easy, medium, hard]`."""

    def faults(self) -> Iterator[str]:
        """Values that do not determine an order."""
        if len({*self.values}) < len(self.values):
            yield "values names a value twice"


class CurriculumOrderConfig(Section):
    """Online curriculum: tasks whose success rate is in a target band are drawn more often. The rates are measured on
    the run's own rollouts; a task without a rate is drawn by exploration."""

    type: Literal["curriculum"] = "curriculum"
    target: tuple[float, float] = (0.2, 0.8)
    """Lowest and highest success rate of the tasks that have full priority."""
    falloff: float = Field(0.2, ge=0, le=1)
    """Distance from the band at which the priority has fallen linearly from 1 to 0; at 0, only tasks in the band
    have priority."""
    decay: float = Field(0.5, ge=0, lt=1)
    """Weight of a task's earlier rate when it is drawn again: rate = decay * rate + (1 - decay) * new rate. At 0,
    only the last group counts."""
    exploration: float = Field(0.25, gt=0, le=1)
    """Fraction of each step's tasks, rounded up, that are drawn from all tasks in the epoch's order, whatever their
    rate. The others are drawn by priority; where too few tasks have one, exploration takes their place."""
    success_reward: float = 1.0
    """Lowest reward of a rollout that counts as a success."""

    def faults(self) -> Iterator[str]:
        """A band that is not one."""
        low, high = self.target
        if not 0 <= low <= high <= 1:
            yield f"target is [{low:g}, {high:g}]; write two success rates from 0 to 1, the lower one first"


class DifficultyOrderConfig(Section):
    """Estimates of the pass rates of all tasks, of which those near a target are drawn (BOTS, arXiv 2510.26374). The
    results of a step also change the estimates of the tasks that were not in it, by interpolation between the pass
    rates of two reference models."""

    type: Literal["difficulty"] = "difficulty"
    columns: tuple[str, str]
    """Columns with the pass rates, from 0 to 1, of a weaker and of a stronger reference model."""
    target: float = Field(0.5, ge=0, le=1)
    """Pass rate of the tasks that are drawn first."""
    temperature: float = Field(0.0, ge=0)
    """Temperature of the draws, whose probabilities are proportional to exp(-distance from the target / temperature);
    at 0, the tasks nearest to the target are taken."""
    thompson_sampling: bool = True
    """Whether the distance from the target is that of a sample of each task's Beta distribution; false for its mean."""
    forgetting: float = Field(0.1, ge=0, le=1)
    """Fraction of the earlier counts of all tasks that is forgotten in each step."""
    interpolation_weight: float = Field(0.1, ge=0, le=1)
    """Weight of the interpolated pass rates, with which the tasks outside of a step are counted."""
    halve_weight: bool = False
    """Whether the weight is halved after each step whose interpolated pass rates are wrong by 0.25 or more on
    average."""
    counts_per_group: float = Field(16.0, gt=0)
    """Successes and failures, together, that one pass rate counts as."""
    success_reward: float | None = None
    """Lowest reward of a rollout that counts as a success; null for the group's mean reward, limited to 0 to 1, as its
    pass rate."""

    def faults(self) -> Iterator[str]:
        """Columns between which nothing can be interpolated."""
        if self.columns[0] == self.columns[1]:
            yield "columns names a column twice; write those of two reference models"


TaskOrderConfig = Annotated[
    Annotated[ColumnOrderConfig | CurriculumOrderConfig | DifficultyOrderConfig, Field(discriminator="type")],
    TypeShorthand(),
]
