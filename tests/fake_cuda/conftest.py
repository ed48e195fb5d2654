"""A GPU that computes shapes only: torch's CUDA build under FakeTensorMode (`make evidence ARGS=fake-cuda`).

A tensor on another device than its partner fails, and so does everything that waits for a number from the device
(`.item()`, `.tolist()`, `nonzero`, a mask as an index). Backward passes run node by node (`tests.fake_cuda.backward`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.nn.attention.flex_attention import flex_attention
from transformers import masking_utils

from strop.models import fused_layers
from strop.models.packed_attention import attention, forward
from strop.models.vision import embedding
from tests.fake_cuda.backward import backward


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip where torch has no CUDA build, or a real GPU."""
    has_build = torch.version.cuda is not None and not torch.cuda.is_available()
    reason = "needs torch's CUDA build and no GPU: make evidence ARGS=fake-cuda"
    for item in items:
        if item.path.is_relative_to(__file__.removesuffix("conftest.py")):
            item.add_marker(pytest.mark.nightly)
            item.add_marker(pytest.mark.skipif(not has_build, reason=reason))


@pytest.fixture
def pinned(monkeypatch: pytest.MonkeyPatch) -> list[torch.Size]:
    """Shapes of the tensors that were pinned; memory cannot be pinned without a GPU."""
    shapes: list[torch.Size] = []

    def pin(tensor: Tensor) -> Tensor:
        shapes.append(tensor.shape)
        return tensor

    monkeypatch.setattr(Tensor, "pin_memory", pin)
    return shapes


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, pinned: list[torch.Size]) -> Iterator[torch.device]:
    """A device whose tensors have shapes and no values, with the capability of an H100."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device=None: (9, 0))
    monkeypatch.setattr(Tensor, "backward", backward)
    # transformers looks at the values of masks and positions, but not at those of fake tensors.
    monkeypatch.setattr(masking_utils, "is_tracing", lambda _tensor=None: False)
    for plan in ("grid_plan", "tile_positions"):
        monkeypatch.setattr(embedding, plan, on_the_host(getattr(embedding, plan)))
    # These compare values or compile for the device, when a model is loaded or first runs.
    monkeypatch.setattr(forward, "_probe", lambda _base: None)
    monkeypatch.setattr(attention, "_flex_function", lambda _device_type: _flex_attention)
    monkeypatch.setattr(fused_layers, "_fused_class", on_the_host(fused_layers._fused_class))
    with FakeTensorMode(), torch.device("cuda"):
        yield torch.device("cuda")


def on_the_host(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that computes with real tensors of the host."""

    @wraps(function)
    def computed(*args: Any, **kwargs: Any) -> Any:
        with unset_fake_temporarily(), torch.device("cpu"):
            return function(*args, **kwargs)

    return computed


def _flex_attention(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """Flex attention; torch's dense attention where a gradient is recorded, which uncompiled flex attention cannot."""
    if not query.requires_grad:
        return flex_attention(query, key, value, **options)
    return F.scaled_dot_product_attention(query, key, value, enable_gqa=options["enable_gqa"])
