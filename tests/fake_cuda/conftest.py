"""A GPU that computes shapes only: torch's CUDA build under FakeTensorMode (`make evidence ARGS=fake-cuda`).

A tensor on another device than its partner fails, and so does everything that waits for a number from the device
(`.item()`, `.tolist()`, `nonzero`, a mask as an index). Backward passes do not run under it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention.flex_attention import flex_attention

from strop.models.packed_attention import flex_kernel, forward


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip where torch has no CUDA build, or a real GPU."""
    has_build = torch.version.cuda is not None and not torch.cuda.is_available()
    reason = "needs torch's CUDA build and no GPU: make evidence ARGS=fake-cuda"
    for item in items:
        if item.path.is_relative_to(__file__.removesuffix("conftest.py")):
            item.add_marker(pytest.mark.evidence)
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
    # Both compare values or compile for the device, when a model is loaded or first runs.
    monkeypatch.setattr(forward, "_probe", lambda _base: None)
    monkeypatch.setattr(flex_kernel, "_function", lambda _device_type: flex_attention)
    with FakeTensorMode(), torch.device("cuda"):
        yield torch.device("cuda")
