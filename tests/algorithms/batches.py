"""Micro-batches and scored rollouts made of random numbers, without a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch

from strop.algorithms.algorithm import RolloutBatch
from strop.types import GlobalCounts, MicroBatch


def make_batch(lengths: Sequence[tuple[int, int]], *, seed: int = 0, on_policy: bool = False) -> MicroBatch:
    """Sequences of (tokens without loss, targets), with random numbers where the loss reads them."""
    generator = torch.Generator().manual_seed(seed)
    total = sum(before + targets for before, targets in lengths)
    mask = torch.cat([torch.arange(before + targets) >= before for before, targets in lengths])

    def numbers(scale: float, shift: float = 0.0) -> torch.Tensor:
        return torch.where(mask, torch.randn(total, generator=generator) * scale + shift, torch.zeros(total))

    ends = torch.tensor([0, *(before + targets for before, targets in lengths)]).cumsum(0)
    return MicroBatch(
        token_ids=torch.zeros(total, dtype=torch.int64),
        position_ids=torch.cat([torch.arange(before + targets) for before, targets in lengths]),
        cu_seqlens=ends.numpy(),
        prefix_of=(-1,) * len(lengths),
        experience=tuple(range(len(lengths))),
        role=tuple("rl" for _ in lengths),
        source=("",) * len(lengths),
        weight=torch.rand(len(lengths), generator=generator) + 0.5,
        targets=np.flatnonzero(mask.numpy()),
        temperature=torch.ones(total),
        sampler_logprobs=numbers(0.1, -1.0),
        policy_logprobs=numbers(0.1, -1.0),
        advantages=numbers(1.0),
        old_logprobs=None if on_policy else numbers(0.3, -1.0),
        ref_logprobs=numbers(0.3, -1.0),
        selected=mask & (torch.arange(total) % 3 == 0),
        teacher_logprobs=numbers(0.3, -1.0),
        values=numbers(1.0),
        returns=numbers(0.1, 0.5),
    )


def split(batch: MicroBatch, segments: int) -> tuple[MicroBatch, MicroBatch]:
    """Split into the first sequences and the remaining ones."""
    return _part(batch, 0, segments), _part(batch, segments, batch.num_segments)


def _part(batch: MicroBatch, first: int, last: int) -> MicroBatch:
    start, end = int(batch.cu_seqlens[first]), int(batch.cu_seqlens[last])
    of_part: dict[str, Any] = {
        "cu_seqlens": batch.cu_seqlens[first : last + 1] - start,
        "targets": np.flatnonzero(batch.loss_mask[start:end]),
    }
    for name in ("prefix_of", "experience", "role", "source", "weight"):
        of_part[name] = getattr(batch, name)[first:last]
    for field in fields(batch):
        value = getattr(batch, field.name)
        if isinstance(value, torch.Tensor) and field.name not in of_part:
            of_part[field.name] = value[start:end]
    return replace(batch, **of_part)


def counts_of(batch: MicroBatch) -> GlobalCounts:
    """The counts of an update that is this one micro-batch."""
    expert = np.array([role == "sft" for role in batch.role])
    chosen = np.array([role == "chosen" for role in batch.role])
    of_experts = int(expert[batch.segment_numbers()[batch.targets]].sum())
    mixed = 0 < expert.sum() < len(expert)
    return GlobalCounts(
        tokens=len(batch.targets) - of_experts * mixed,
        sequences=batch.num_segments - int(expert.sum()) * mixed,
        expert_tokens=of_experts,
        pairs=batch.role.count("chosen"),
        chosen_tokens=int(chosen[batch.segment_numbers()[batch.targets]].sum()),
        desirable=batch.role.count("desirable"),
        undesirable=batch.role.count("undesirable"),
        reference_point=0.25 if "desirable" in batch.role else 0.0,
    )


def rollouts(
    rewards: Sequence[float], tokens: Sequence[int], group: Sequence[int] | None = None, **fields: Any
) -> RolloutBatch:
    """A scored step of one group, or of several, from plain lists."""
    numbers = {"turns": torch.int64, "turn_states": torch.int64}
    return RolloutBatch(
        rewards=torch.tensor(rewards, dtype=torch.float32),
        group=torch.tensor([0] * len(rewards) if group is None else group),
        tokens=torch.tensor(tokens),
        **{name: torch.tensor(each, dtype=numbers.get(name, torch.float32)) for name, each in fields.items()},
    )


def make_rollouts(seed: int) -> RolloutBatch:
    """A step of ragged rollouts in groups of any size, with every input that an estimator reads.

    Numbers have eight binary places, so that rounding does not decide which of two rewards is higher.
    """
    generator = torch.Generator().manual_seed(seed)

    def integers(count: int, least: int, most: int) -> torch.Tensor:
        return torch.randint(least, most + 1, (count,), generator=generator)

    def some(count: int) -> torch.Tensor:
        return integers(count, -2560, 2560) / 256

    count = int(integers(1, 1, 8))
    tokens = integers(count, 1, 7)
    targets = int(tokens.sum())
    return RolloutBatch(
        rewards=some(count),
        group=integers(count, 0, 3),
        tokens=tokens,
        kl_penalties=some(targets),
        baselines=some(count),
        reward_parts=integers(2 * count, -3, 3).view(count, 2).float(),
        gradient_norms=integers(targets, 1, 256) / 256,
        process_rewards=some(targets),
        intermediate_rewards=some(targets),
        turns=torch.arange(targets),
        turn_states=integers(targets, 0, 1),
        sequences=integers(count, 1, 3),
    )
