"""Random ragged batches, as peers want them (padded) and as Strop does (packed)."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch

from strop.algorithms.scored import Scored
from strop.types import GlobalCounts, MicroBatch, Role

MAX_RESPONSE_TOKENS = 12


@dataclass(frozen=True)
class Batch:
    """N answers of at most L tokens, float64; zeros where `mask` is False."""

    rewards: torch.Tensor
    """[N] exact in float32, which some peers round to."""
    greedy: torch.Tensor
    """[N]"""
    group: torch.Tensor
    """[N]"""
    mask: torch.Tensor
    """[N, L] bool"""
    penalties: torch.Tensor
    """[N, L]"""
    values: torch.Tensor
    """[N, L]"""
    advantages: torch.Tensor
    """[N, L]"""
    logprobs: torch.Tensor
    """[N, L]"""
    old: torch.Tensor
    """[N, L]"""
    sampler: torch.Tensor
    """[N, L]"""
    reference: torch.Tensor
    """[N, L]"""

    @property
    def lengths(self) -> torch.Tensor:
        """[N]"""
        return self.mask.sum(1)

    def token_rewards(self) -> torch.Tensor:
        """[N, L] the reward at the last token, less each token's penalty."""
        rewards = -self.penalties
        rewards[torch.arange(len(self.mask)), self.lengths - 1] += self.rewards
        return rewards

    def scored(self, *, penalised: bool) -> Scored:
        """For Strop's estimators."""
        return Scored(
            rewards=self.rewards,
            group=self.group,
            tokens=self.lengths,
            penalties=self.penalties[self.mask] if penalised else None,
            baselines=self.greedy,
        )

    def counts(self) -> GlobalCounts:
        """Of an update that is this batch."""
        return GlobalCounts(tokens=int(self.mask.sum()), sequences=len(self.mask))

    def alone(self) -> Batch:
        """The same answers, each in a group of its own."""
        return replace(self, group=torch.arange(len(self.group)))

    def first(self, answers: int) -> Batch:
        """So many of the answers."""
        return Batch(**{field.name: getattr(self, field.name)[:answers] for field in fields(self)})

    def micro_batch(self, roles: tuple[Role, ...] | None = None) -> MicroBatch:
        """Packed: each answer behind one token of a prompt."""
        ends = torch.cat([torch.zeros(1, dtype=torch.int64), (self.lengths + 1).cumsum(0)])
        targets = torch.ones(int(ends[-1]), dtype=torch.bool)
        targets[ends[:-1]] = False

        def packed(values: torch.Tensor) -> torch.Tensor:
            return torch.zeros(len(targets), dtype=values.dtype).masked_scatter(targets, values[self.mask])

        return MicroBatch(
            token_ids=torch.zeros(len(targets), dtype=torch.int64),
            position_ids=torch.zeros(len(targets), dtype=torch.int64),
            cu_seqlens=ends.to(torch.int32),
            prefix_of=(-1,) * len(self.mask),
            experience=tuple(range(len(self.mask))),
            role=roles or ("rl",) * len(self.mask),
            weight=torch.ones(len(self.mask), dtype=torch.float64),
            loss_mask=targets,
            temperature=torch.ones(len(targets)),
            sampler_logprobs=packed(self.sampler),
            policy_logprobs=packed(self.sampler),
            advantages=packed(self.advantages),
            old_logprobs=packed(self.old),
            ref_logprobs=packed(self.reference),
        )


def make_batch(seed: int) -> Batch:
    """Groups of two to five answers, of one to twelve tokens; some groups with one reward for all."""
    generator = torch.Generator().manual_seed(seed)

    def whole(low: int, high: int, count: int) -> torch.Tensor:
        return torch.randint(low, high, (count,), generator=generator)

    sizes = whole(2, 6, 5)
    group = torch.arange(5).repeat_interleave(sizes)
    group = group[torch.randperm(len(group), generator=generator)]
    rewards = whole(-8, 9, len(group)).double() / 4
    rewards[group == 0] = 1.0
    lengths = whole(1, MAX_RESPONSE_TOKENS + 1, len(group))
    lengths[0] = MAX_RESPONSE_TOKENS
    mask = torch.arange(MAX_RESPONSE_TOKENS) < lengths[:, None]

    def numbers(scale: float, shift: float = 0.0) -> torch.Tensor:
        drawn = torch.randn(mask.shape, generator=generator, dtype=torch.float64)
        return (drawn * scale + shift) * mask

    old = numbers(0.5, -2.0)
    return Batch(
        rewards=rewards,
        greedy=whole(-8, 9, len(group)).double() / 4,
        group=group,
        mask=mask,
        penalties=(numbers(0.1) * 1024).round() / 1024,
        values=numbers(1.0),
        advantages=numbers(1.0),
        logprobs=old + numbers(0.4),
        old=old,
        sampler=old + numbers(0.2),
        reference=old + numbers(0.4),
    )
