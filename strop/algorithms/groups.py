"""Statistics over groups: the rollouts of one task, any number of them, in any order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from strop.reward_comparison import are_equal


@dataclass(frozen=True, slots=True)
class GroupIndex:
    """Group membership of N rollouts, with sums, means and deviations over groups.

    Statistics are float64, in which the sum of equal float32 numbers is exact, and so is their mean: equal
    rewards give advantages of exactly 0, where float32 would leave rounding errors.
    """

    group_number: torch.Tensor
    """[N] int64: group number of each rollout, from 0."""
    size: torch.Tensor
    """[N] float64: number of rollouts in each rollout's group."""

    @classmethod
    def of(cls, group: torch.Tensor) -> GroupIndex:
        """The index of `group` [N], where equal integers belong to one group."""
        _, member, size = group.unique(return_inverse=True, return_counts=True)  # type: ignore[no-untyped-call]
        return cls(member, size.double()[member])

    def total(self, values: torch.Tensor) -> torch.Tensor:
        """[N] of [N] float64: for each rollout, the sum over its group."""
        return torch.zeros_like(values).index_add(0, self.group_number, values)[self.group_number]

    def mean(self, values: torch.Tensor) -> torch.Tensor:
        """[N] of [N] float64: for each rollout, the mean over its group."""
        return self.total(values) / self.size

    def highest(self, values: torch.Tensor) -> torch.Tensor:
        """[N] of [N] float64: for each rollout, the highest in its group."""
        return values.scatter_reduce(0, self.group_number, values, "amax", include_self=False)[
            self.group_number
        ]

    def std(self, values: torch.Tensor) -> torch.Tensor:
        """[N] of [N] float64: the unbiased standard deviation (divided by n - 1); 0 in a group of one."""
        squares = self.total((values - self.mean(values)).square())
        return (squares / (self.size - 1).clamp(min=1)).sqrt()


def has_reward_variance(rewards: Sequence[float]) -> bool:
    """Whether the rewards of a group differ, so that it has a gradient (DAPO, arXiv 2503.14476, equation 11).

    False for a group of one or none. (verl's DAPO keeps groups of one.)
    """
    return not are_equal(rewards)
