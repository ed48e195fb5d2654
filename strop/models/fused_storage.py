"""Fused storage of projections that read the same input: one tensor for q, k, v and one for gate, up.

The native engine multiplies once where Hugging Face's modules multiply three times (q, k, v) or twice
(gate, up). `fuse_storage` makes the trainer's own parameters views of the fused tensors: publishing copies
nothing, and the optimizer updates the separate parameters in place.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from strop.models.quantization import QuantizedWeight

FUSED_PROJECTIONS: tuple[tuple[str, ...], ...] = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Names of sibling linear layers that read the same input."""


def fuse_storage(model: nn.Module) -> None:
    """Make the weights and biases of sibling projections views of one tensor each.

    Values, parameter objects and gradients do not change. Siblings that differ in dtype, device or input
    size are left as they are. Of a projection with an adapter, the base layer is fused.
    """
    for module in model.modules():
        for names in FUSED_PROJECTIONS:
            siblings = [_linear(getattr(module, name, None)) for name in names]
            linears = [linear for linear in siblings if linear is not None]
            if len(linears) == len(names):
                for kind in ("weight", "bias"):
                    _fuse([getattr(linear, kind) for linear in linears])


def concatenated_view(parts: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """`torch.cat(parts)` without a copy if the parts are consecutive in memory; else None."""
    first = parts[0].detach()
    rows, next_address = 0, first.data_ptr()
    for part in parts:
        fits = part.dtype == first.dtype and part.device == first.device and part.shape[1:] == first.shape[1:]
        same_storage = part.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        if not (fits and same_storage and part.is_contiguous() and part.data_ptr() == next_address):
            return None
        rows += part.shape[0]
        next_address += part.numel() * part.element_size()
    return first.as_strided((rows, *first.shape[1:]), first.stride())


def _linear(module: object) -> nn.Linear | None:
    inner = getattr(module, "base_layer", module)
    return inner if isinstance(inner, nn.Linear) else None


def _fuse(parameters: Sequence[nn.Parameter | None]) -> None:
    present = [parameter for parameter in parameters if parameter is not None]
    kinds = {(p.dtype, p.device, p.shape[1:]) for p in present}
    if any(isinstance(parameter, QuantizedWeight) for parameter in present):
        return  # the engine stacks their codes
    if len(present) != len(parameters) or len(kinds) != 1 or concatenated_view(present) is not None:
        return
    joined = torch.cat([parameter.detach() for parameter in present])
    for parameter, view in zip(present, torch.split(joined, [len(p) for p in present]), strict=True):
        parameter.data = view
