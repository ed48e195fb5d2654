"""Micro-batches made of plain lists, without a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from strop.types import GlobalCounts, IndexArray, MicroBatch


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
    )


def split(batch: MicroBatch, segments: int) -> tuple[MicroBatch, MicroBatch]:
    """Split into the first sequences and the remaining ones."""
    cut = int(batch.cu_seqlens[segments])

    def part(tokens: slice, rows: slice, ends: IndexArray) -> MicroBatch:
        per_token = {
            name: getattr(batch, name)[tokens]
            for name in (
                "token_ids",
                "position_ids",
                "temperature",
                "sampler_logprobs",
                "policy_logprobs",
                "advantages",
                "ref_logprobs",
            )
        }
        old = None if batch.old_logprobs is None else batch.old_logprobs[tokens]
        selected = None if batch.selected is None else batch.selected[tokens]
        return replace(
            batch,
            **per_token,
            old_logprobs=old,
            selected=selected,
            cu_seqlens=ends,
            targets=np.flatnonzero(batch.loss_mask[tokens]),
            prefix_of=batch.prefix_of[rows],
            experience=batch.experience[rows],
            role=batch.role[rows],
            source=batch.source[rows],
            weight=batch.weight[rows],
        )

    return (
        part(slice(None, cut), slice(None, segments), batch.cu_seqlens[: segments + 1]),
        part(slice(cut, None), slice(segments, None), batch.cu_seqlens[segments:] - cut),
    )


def counts_of(batch: MicroBatch) -> GlobalCounts:
    """The counts of an update that is this one micro-batch."""
    return GlobalCounts(tokens=len(batch.targets), sequences=batch.num_segments)
