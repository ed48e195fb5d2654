"""Case of the comparison: a function of a peer and its counterpart in Strop, on one batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from batches import Batch

Value = Callable[[Batch], torch.Tensor]


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    quantity: str
    """Name of the compared quantity."""
    peer: str
    """Name of the other library."""
    peer_value: Value
    """Value by the peer's function."""
    strop_value: Value
    """Value by Strop's function."""
    reason: str = ""
    """Reason for a difference; empty if the values are equal."""


def with_gradient(batch: Batch, loss: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """[1 + N L] Loss of a peer as a function of log-probs [N, L], and its gradient; 0 where there is no token."""
    logprobs = batch.logprobs.clone().requires_grad_()
    value = loss(logprobs)
    (gradient,) = torch.autograd.grad(value, logprobs)
    return torch.cat([value.detach().view(1), (gradient * batch.mask).flatten()])
