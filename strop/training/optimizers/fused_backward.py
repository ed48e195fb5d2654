"""Updates during the backward pass: each parameter is updated once its gradient is complete, which is then freed.

At most one parameter's gradient is in memory at a time (LOMO, arXiv 2306.09782). In return, gradients cannot be
accumulated over micro-batches, nor clipped by their norm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from weakref import WeakMethod

import torch
from torch import Tensor, nn

from strop.errors import TrainingError
from strop.types import GlobalCounts, MicroBatch


def call_with_gradients(parameters: Iterable[nn.Parameter], method: Callable[[int, Tensor], None]) -> None:
    """Call a bound method with the number of each parameter, and the parameter, whenever it has a new gradient.

    The method's object is held weakly: torch keeps hooks where Python's garbage collector does not see them, so that
    parameters which their own hooks reach would never be freed.
    """
    weak = WeakMethod(method)

    def call(number: int, parameter: Tensor) -> None:
        if (bound := weak()) is not None:
            bound(number, parameter)

    for number, parameter in enumerate(parameters):
        parameter.register_post_accumulate_grad_hook(partial(call, number))  # type: ignore[no-untyped-call]


class FusedBackward:
    """Hooks an optimizer into the backward pass of a model."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        masters: Mapping[str, nn.Parameter],
        computing: Mapping[str, nn.Parameter],
    ) -> None:
        """`optimizer` updates `masters`; `computing` are the same parameters, or their copies in another dtype."""
        self._optimizer = optimizer
        self._masters = [masters[name] for name in computing]
        self._norms: list[Tensor] = []
        call_with_gradients(computing.values(), self._update)

    def pop_grad_norm(self) -> Tensor:
        """Norm of the gradients since the last call; 0 without any."""
        norm = torch.stack(self._norms).norm() if self._norms else torch.zeros(())
        self._norms.clear()
        return norm

    @torch.no_grad()
    def _update(self, number: int, computing: Tensor) -> None:
        master = self._masters[number]
        assert computing.grad is not None
        master.grad, gradient = computing.grad.to(master.dtype), computing.grad
        self._norms.append(gradient.norm(dtype=torch.float32))
        self._optimizer.step()  # updates this parameter only: no other has a gradient
        computing.grad = master.grad = None
        if computing is not master:
            computing.copy_(master)


def require_single_micro_batch(micro_batch: MicroBatch, counts: GlobalCounts) -> None:
    """Raises TrainingError for a micro-batch that is not the whole update."""
    own, total = len(micro_batch.targets), counts.measured_tokens + counts.expert_tokens
    if own != total:
        raise TrainingError(
            "lomo and adalomo update the weights during the backward pass, so an update must be one micro-batch; "
            f"this one holds {own} of the update's {total} trained tokens. The weights are unchanged. Write a "
            "larger `microbatch` or a smaller `tasks_per_update`, or use another optimizer."
        )
