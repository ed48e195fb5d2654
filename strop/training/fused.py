"""Updates during backward: each weight moves as soon as its gradient is whole, and the gradient is dropped.

So no more than one parameter's gradient is held at a time (LOMO, arXiv 2306.09782). The price is that
gradients are never whole together: they cannot be added up over micro-batches, nor clipped by their norm.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor, nn

from strop.errors import TrainingError
from strop.types import GlobalCounts, MicroBatch


class FusedBackward:
    """Hooks an optimizer into the backward pass of what computes."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        masters: Mapping[str, nn.Parameter],
        computing: Mapping[str, nn.Parameter],
    ) -> None:
        """`optimizer` moves `masters`; `computing` are the same, or their doubles in another dtype."""
        self._optimizer = optimizer
        self._norms: list[Tensor] = []
        for name, parameter in computing.items():
            parameter.register_post_accumulate_grad_hook(partial(self._update, masters[name]))  # type: ignore[no-untyped-call]

    def norm(self) -> Tensor:
        """Of the gradient that went by since the last call; 0 for none."""
        norm = torch.stack(self._norms).norm() if self._norms else torch.zeros(())
        self._norms.clear()
        return norm

    @torch.no_grad()
    def _update(self, master: nn.Parameter, computing: Tensor) -> None:
        assert computing.grad is not None
        master.grad, gradient = computing.grad.to(master.dtype), computing.grad
        self._norms.append(gradient.norm(dtype=torch.float32))
        self._optimizer.step()  # of this one parameter: no other has a gradient
        computing.grad = master.grad = None
        if computing is not master:
            computing.copy_(master)


def require_whole(micro_batch: MicroBatch, counts: GlobalCounts) -> None:
    """Raises TrainingError for a micro-batch that is not all of an update."""
    here, whole = int(micro_batch.loss_mask.sum()), counts.tokens + counts.expert_tokens
    if here != whole:
        raise TrainingError(
            "lomo and adalomo move the weights during backward, so an update must be one micro-batch; this "
            f"one holds {here} of the update's {whole} trained tokens, and nothing was changed. Write a "
            "larger `microbatch` or a smaller `tasks_per_update`, or take another optimizer."
        )
