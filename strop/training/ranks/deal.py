"""Micro-batches, dealt to ranks that must all go through the model equally often."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from strop.types import GlobalCounts, LossOutput, MicroBatch


def deal(micro_batches: Sequence[MicroBatch], ranks: int) -> list[list[MicroBatch]]:
    """Each rank's share, all of one length; idle ones are added where they do not come out even."""
    missing = -len(micro_batches) % ranks
    dealt = [*micro_batches, *[_idle()] * missing]
    return [dealt[rank::ranks] for rank in range(ranks)]


@dataclass(frozen=True, slots=True)
class OfTargets:
    """A loss that asks nothing of a micro-batch without targets, and yet lets the gradient through it."""

    loss_fn: Callable[[MicroBatch, Any, GlobalCounts], LossOutput]

    def __call__(self, micro_batch: MicroBatch, outputs: Any, counts: GlobalCounts) -> LossOutput:
        if micro_batch.loss_mask.any():
            return self.loss_fn(micro_batch, outputs, counts)
        values: Tensor = outputs if isinstance(outputs, Tensor) else outputs.logprobs
        return LossOutput(values.sum(), {})


def on(device: torch.device, micro_batch: MicroBatch) -> MicroBatch:
    """The same on another device."""
    values = {field.name: getattr(micro_batch, field.name) for field in fields(micro_batch)}
    moved: dict[str, Any] = {
        name: value.to(device) for name, value in values.items() if isinstance(value, Tensor)
    }
    return replace(micro_batch, **moved)


def _idle() -> MicroBatch:
    """Two tokens of which none is a target."""
    nothing = torch.zeros(2)
    return MicroBatch(
        token_ids=torch.zeros(2, dtype=torch.int64),
        position_ids=torch.arange(2),
        cu_seqlens=torch.tensor([0, 2], dtype=torch.int32),
        prefix_of=(-1,),
        experience=(-1,),
        role=(None,),
        weight=torch.ones(1),
        loss_mask=torch.zeros(2, dtype=torch.bool),
        temperature=torch.ones(2),
        sampler_logprobs=nothing,
        policy_logprobs=nothing,
        advantages=nothing,
    )
