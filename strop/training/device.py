"""Where this process computes."""

from __future__ import annotations

from typing import Literal

import torch

from strop.errors import PlacementError


def find_device(wanted: Literal["auto", "cpu", "cuda"], key: str = "trainer.engine.device") -> torch.device:
    """What the run file's `key` means here. Raises PlacementError for a GPU that is not there."""
    available = torch.cuda.is_available()
    if wanted == "cuda" and not available:
        raise PlacementError(
            f"{key} is cuda, but torch sees no GPU here. Write `auto` or `cpu`, or run with --here."
        )
    return torch.device("cuda" if available and wanted != "cpu" else "cpu")
