"""A model in DeepSpeed's engine: calls of the model, backward pass, clipping and updates."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from strop.training.zero.library import import_deepspeed, local_rank
from strop.training.zero.state import ZeroState

T = TypeVar("T")


class ZeroModel:
    """Calls functions with a model, and updates it, through DeepSpeed's engine; `attach` comes first.

    Every rank calls the same methods. DeepSpeed averages gradients over ranks, so that each rank's loss is
    multiplied by their number: losses are divided by counts over all ranks, and their gradients are summed.
    """

    def __init__(
        self,
        model: nn.Module,
        layers: Sequence[type[nn.Module]],
        head: nn.Linear,
        device: torch.device,
        config: Mapping[str, Any],
    ) -> None:
        """`layers` are gathered as a whole, `head` is read outside of its own forward pass, and `config` is a DeepSpeed
        configuration without `gradient_clipping`."""
        self._root = _ZeroRoot(model)
        self._layers = list(layers)
        self._head = head
        self._device = device
        self._config = config
        self._engine: Any = None

    def attach(self, optimizer: torch.optim.Optimizer, max_grad_norm: float | None) -> ZeroState:
        """Divide the model and the optimizer's state over the ranks; returns their state."""
        deepspeed = import_deepspeed(self._device.type)
        if self._config["zero_optimization"]["stage"] == 3:
            # Modules in a layer run in an order that depends on the micro-batch; all ranks must gather in one order.
            deepspeed.utils.set_z3_leaf_modules(self._root, self._layers)
            for parameter in self._head.parameters(recurse=False):
                deepspeed.zero.register_external_parameter(self._root, parameter)
        with local_rank(self._device):
            self._engine, *_ = deepspeed.initialize(
                model=self._root,
                optimizer=optimizer,
                config={**self._config, "gradient_clipping": max_grad_norm or 0.0},
            )
        return ZeroState(self._engine, self._root.model)

    def __call__(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        results: list[tuple[list[Any], Any]] = []

        def run(model: nn.Module) -> dict[str, Tensor]:
            leaves, structure = tree_flatten(function(model, *args, **kwargs))
            results.append((leaves, structure))
            learned = [leaf.flatten().float() for leaf in leaves if _is_learned(leaf)]
            return {"learned": torch.cat(learned)} if learned else {}

        with local_rank(self._device):
            joined = self._engine(run).get("learned")
        ((leaves, structure),) = results
        if joined is not None:
            learned = [i for i, leaf in enumerate(leaves) if _is_learned(leaf)]
            parts = joined.split([leaves[i].numel() for i in learned])
            for i, part in zip(learned, parts, strict=True):
                leaves[i] = part.view(leaves[i].shape).to(leaves[i].dtype)
        result: T = tree_unflatten(leaves, structure)
        return result

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of this rank's loss."""
        with local_rank(self._device):
            self._engine.backward(loss * distributed.get_world_size(), scale_wrt_gas=False)

    def step(self) -> float:
        """Clip and update; returns the norm before clipping, which is not finite if there was no update.

        An update in float16 whose gradient overflows is skipped, and the loss scale is reduced: its norm is 0.
        """
        with local_rank(self._device):
            self._engine.step()
        if self._engine.was_step_applied():
            return float(self._engine.get_global_grad_norm())
        return 0.0 if self._engine.fp16_enabled() else math.nan


class _ZeroRoot(nn.Module):
    """Module around which DeepSpeed gathers parameters; any function of the model can be called inside.

    Its result is one tensor: DeepSpeed's order of parameters would depend on which of several tensors a loss uses,
    and must be equal on all ranks.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, function: Callable[[nn.Module], dict[str, Tensor]]) -> dict[str, Tensor]:
        return function(self.model)


def _is_learned(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.requires_grad
