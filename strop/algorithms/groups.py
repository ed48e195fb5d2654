"""Groups: the answers to one task, of any number, in any order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Groups:
    """Which of N rollouts belong together.

    All is float64: the sum of equal float32 numbers is exact then, and so their mean is that
    number. Equal rewards give advantages of exactly 0, where float32 would leave rounding errors.
    """

    member: torch.Tensor
    """[N] int64: which group, from 0."""
    size: torch.Tensor
    """[N] float64: rollouts in it."""

    @classmethod
    def of(cls, group: torch.Tensor) -> Groups:
        """Equal integers in `group` [N] belong together."""
        _, member, size = group.unique(return_inverse=True, return_counts=True)  # type: ignore[no-untyped-call]
        return cls(member, size.double()[member])

    def total(self, values: torch.Tensor) -> torch.Tensor:
        """[N] of [N] float64: for each rollout, the sum over its group."""
        return torch.zeros_like(values).index_add(0, self.member, values)[self.member]

    def mean(self, values: torch.Tensor) -> torch.Tensor:
        """[N] of [N] float64: for each rollout, the mean over its group."""
        return self.total(values) / self.size

    def highest(self, values: torch.Tensor) -> torch.Tensor:
        """[N] of [N] float64: for each rollout, the highest in its group."""
        return values.scatter_reduce(0, self.member, values, "amax", include_self=False)[self.member]

    def std(self, values: torch.Tensor) -> torch.Tensor:
        """[N] of [N] float64: the unbiased standard deviation (divided by n - 1); 0 in a group of one."""
        squares = self.total((values - self.mean(values)).square())
        return (squares / (self.size - 1).clamp(min=1)).sqrt()


def has_signal(rewards: Sequence[float]) -> bool:
    """Whether a group teaches anything: whether its rewards differ (DAPO, arXiv 2503.14476, equation 11).

    A group of one or none does not. (verl's DAPO keeps groups of one.)
    """
    return len(set(rewards)) > 1
