"""Declares torchvision's operators when torchvision is first looked for.

Its wheels are built for the CUDA builds of torch; next to a CPU build their operators are missing, and the import fails
without their declarations. Image processors call none of them. The .pth file of this folder imports this module at the
start of each process of the tests' environments.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_OPERATORS = (
    "_deform_conv2d_backward",
    "_ps_roi_align_backward",
    "_ps_roi_pool_backward",
    "_roi_align_backward",
    "_roi_pool_backward",
    "deform_conv2d",
    "nms",
    "ps_roi_align",
    "ps_roi_pool",
    "qnms",
    "qroi_align",
    "roi_align",
    "roi_pool",
)


class _Declaration(MetaPathFinder):
    """Finds no module; declares the operators once, before torchvision is found."""

    library: Any = None

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """None, so that the next finder is asked."""
        if fullname == "torchvision" and self.library is None:
            import torch

            self.library = torch.library.Library("torchvision", "DEF")
            for operator in _OPERATORS:
                self.library.define(f"{operator}(Tensor tensor) -> Tensor")
        return None


sys.meta_path.insert(0, _Declaration())
