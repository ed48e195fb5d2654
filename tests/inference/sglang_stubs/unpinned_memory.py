"""Tensors in pageable memory where SGLang's LoRA layers ask for pinned memory, which a CPU build of torch lacks."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch


def use_pageable_memory() -> None:
    """Have torch's constructors of tensors ignore `pin_memory`, and `Tensor.pin_memory` return the tensor."""
    torch.Tensor.pin_memory = _same  # type: ignore[assignment,method-assign]
    for name in ("arange", "empty", "tensor", "zeros"):
        setattr(torch, name, _without_pinning(getattr(torch, name)))


def _same(tensor: torch.Tensor, device: object = None) -> torch.Tensor:
    return tensor


def _without_pinning(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @wraps(make)
    def make_pageable(*args: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        return make(*args, **options)

    return make_pageable
