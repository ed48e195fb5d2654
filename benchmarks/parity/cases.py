"""What is compared: a peer's function and Strop's on one batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from batches import Batch

Value = Callable[[Batch], torch.Tensor]


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    what: str
    peer: str
    theirs: Value
    ours: Value
    why: str = ""
    """Why they differ, where they do."""


def with_gradient(batch: Batch, loss: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """[1 + N L] a peer's loss of log-probs [N, L], and its gradient, where there is a token."""
    logprobs = batch.logprobs.clone().requires_grad_()
    value = loss(logprobs)
    (gradient,) = torch.autograd.grad(value, logprobs)
    return torch.cat([value.detach().view(1), (gradient * batch.mask).flatten()])
