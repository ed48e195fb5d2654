"""Random ragged batches, padded for the peers and packed for Strop."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
import torch

from strop.algorithms.algorithm import RolloutBatch
from strop.types import GlobalCounts, MicroBatch, SegmentRole

MAX_RESPONSE_TOKENS = 12


@dataclass(frozen=True)
class Batch:
    """N responses of at most L tokens, float64; values are 0 where `mask` is False."""

    rewards: torch.Tensor
    """[N] Rewards, exact in float32, to which some peers round."""
    baselines: torch.Tensor
    """[N] Rewards of the greedy responses (ReMax)."""
    group: torch.Tensor
    """[N] Group numbers."""
    mask: torch.Tensor
    """[N, L] bool; True at the tokens of each response."""
    penalties: torch.Tensor
    """[N, L] KL penalties, to be subtracted from the rewards."""
    values: torch.Tensor
    """[N, L] A critic's values."""
    advantages: torch.Tensor
    """[N, L] Advantages for the losses."""
    logprobs: torch.Tensor
    """[N, L] Current log-probs of the policy."""
    old_logprobs: torch.Tensor
    """[N, L] Log-probs of the policy at the start of the step."""
    sampler_logprobs: torch.Tensor
    """[N, L] Log-probs of the sampler."""
    ref_logprobs: torch.Tensor
    """[N, L] Log-probs of the reference model."""

    @property
    def lengths(self) -> torch.Tensor:
        """[N] Numbers of tokens."""
        return self.mask.sum(1)

    @property
    def labels(self) -> torch.Tensor:
        """[N] bool; True for a response that is labeled desirable."""
        return self.advantages[:, 0] > -0.5

    def token_rewards(self) -> torch.Tensor:
        """[N, L] The reward at the last token minus the penalty of each token."""
        rewards = -self.penalties
        rewards[torch.arange(len(self.mask)), self.lengths - 1] += self.rewards
        return rewards

    def rollout_batch(self, *, penalized: bool) -> RolloutBatch:
        """Return the input of Strop's estimators; `penalized` adds the KL penalties."""
        return RolloutBatch(
            rewards=self.rewards,
            group=self.group,
            tokens=self.lengths,
            kl_penalties=self.penalties[self.mask] if penalized else None,
            baselines=self.baselines,
        )

    def counts(self) -> GlobalCounts:
        """Return the counts of an update that consists of this batch."""
        return GlobalCounts(
            tokens=int(self.mask.sum()),
            sequences=len(self.mask),
            pairs=len(self.mask) // 2,
            chosen_tokens=int(self.mask[::2].sum()),
        )

    def pairs(self) -> Batch:
        """Return the batch with an even number of responses: a chosen one and its rejected one alternate."""
        return self.first(len(self.mask) // 2 * 2)

    def ungrouped(self) -> Batch:
        """Return the same responses, each in a separate group."""
        return replace(self, group=torch.arange(len(self.group)))

    def first(self, count: int) -> Batch:
        """Return the first `count` responses."""
        return Batch(**{field.name: getattr(self, field.name)[:count] for field in fields(self)})

    def below_one(self) -> Batch:
        """Return the batch with log-probs of probabilities below 1, for losses that read probabilities."""
        return replace(
            self, logprobs=self.logprobs.clamp(max=-0.1), old_logprobs=self.old_logprobs.clamp(max=-0.1)
        )

    def with_one_advantage(self) -> Batch:
        """Return the batch with one advantage per response; objectives of responses are then the same."""
        return replace(self, advantages=self.advantages[:, :1] * self.mask)

    def micro_batch(self, roles: tuple[SegmentRole, ...] | None = None) -> MicroBatch:
        """Return the packed batch; one prompt token precedes each response. The default role is `rl`."""
        rl: SegmentRole = "rl"
        ends = torch.cat([torch.zeros(1, dtype=torch.int64), (self.lengths + 1).cumsum(0)])
        targets = torch.ones(int(ends[-1]), dtype=torch.bool)
        targets[ends[:-1]] = False

        def packed(values: torch.Tensor) -> torch.Tensor:
            return torch.zeros(len(targets), dtype=values.dtype).masked_scatter(targets, values[self.mask])

        return MicroBatch(
            token_ids=torch.zeros(len(targets), dtype=torch.int64),
            position_ids=torch.zeros(len(targets), dtype=torch.int64),
            cu_seqlens=ends.numpy(),
            prefix_of=(-1,) * len(self.mask),
            experience=tuple(range(len(self.mask))),
            role=roles or (rl,) * len(self.mask),
            source=("",) * len(self.mask),
            weight=torch.ones(len(self.mask), dtype=torch.float64),
            targets=np.flatnonzero(targets.numpy()),
            temperature=torch.ones(len(targets)),
            sampler_logprobs=packed(self.sampler_logprobs),
            policy_logprobs=packed(self.sampler_logprobs),
            advantages=packed(self.advantages),
            old_logprobs=packed(self.old_logprobs),
            ref_logprobs=packed(self.ref_logprobs),
        )


def make_batch(seed: int) -> Batch:
    """Make five groups of 2 to 5 responses of 1 to 12 tokens; all rewards of group 0 are equal."""
    generator = torch.Generator().manual_seed(seed)

    def integers(low: int, high: int, count: int) -> torch.Tensor:
        return torch.randint(low, high, (count,), generator=generator)

    sizes = integers(2, 6, 5)
    group = torch.arange(5).repeat_interleave(sizes)
    group = group[torch.randperm(len(group), generator=generator)]
    rewards = integers(-8, 9, len(group)).double() / 4
    rewards[group == 0] = 1.0
    lengths = integers(1, MAX_RESPONSE_TOKENS + 1, len(group))
    lengths[0] = MAX_RESPONSE_TOKENS
    mask = torch.arange(MAX_RESPONSE_TOKENS) < lengths[:, None]

    def floats(scale: float, shift: float = 0.0) -> torch.Tensor:
        normal = torch.randn(mask.shape, generator=generator, dtype=torch.float64)
        return (normal * scale + shift) * mask

    old = floats(0.5, -2.0)
    return Batch(
        rewards=rewards,
        baselines=integers(-8, 9, len(group)).double() / 4,
        group=group,
        mask=mask,
        penalties=(floats(0.1) * 1024).round() / 1024,
        values=floats(1.0),
        advantages=floats(1.0),
        logprobs=old + floats(0.4),
        old_logprobs=old,
        sampler_logprobs=old + floats(0.2),
        ref_logprobs=old + floats(0.4),
    )
