"""Mixed precision: the optimizer updates float32 parameters, a bfloat16 copy runs forward and backward passes.

The copy is refreshed after each update, and gradients are accumulated in float32. On a CPU this is 10 to 20 %
faster than autocast, which converts activations back and forth.
"""

from __future__ import annotations

import copy

import torch
from torch import nn

from strop.config.schema.model import ModelConfig


def trainable_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Trained parameters by name, in the model's order; a parameter with two names is listed once."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def make_compute_copy(model: nn.Module, section: ModelConfig) -> ComputeCopy | None:
    """The copy in `model.compute_dtype`; None where that is the model's own dtype."""
    if section.compute_dtype in (None, section.dtype):
        return None
    return ComputeCopy(model, getattr(torch, section.compute_dtype))


class ComputeCopy:
    """A copy of a model in another dtype. Frozen parameters that already have that dtype are shared."""

    def __init__(self, master: nn.Module, dtype: torch.dtype) -> None:
        copies: dict[int, nn.Parameter] = {}
        for parameter in master.parameters():
            if parameter.dtype != dtype:  # at once: a copy in the old type would be as large again
                converted = nn.Parameter(parameter.detach().to(dtype), parameter.requires_grad)
                copies[id(parameter)] = converted
            elif not parameter.requires_grad:
                copies[id(parameter)] = parameter
        self.model = copy.deepcopy(master, copies)
        masters, computing = trainable_parameters(master), trainable_parameters(self.model)
        self._pairs = [(masters[name], computing[name]) for name in masters]

    def collect_gradients(self) -> None:
        """Add the copy's gradients to the master's, and clear them."""
        for master, computing in self._pairs:
            if computing.grad is None:
                continue
            if master.grad is None:
                master.grad = computing.grad.to(master.dtype)
            else:
                master.grad += computing.grad
            computing.grad = None

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the master's values."""
        for master, computing in self._pairs:
            computing.copy_(master)
