"""Where this process computes."""

from __future__ import annotations

import torch

from strop.config.schema.trainer import SingleEngine
from strop.errors import PlacementError


def find_device(section: SingleEngine) -> torch.device:
    """What `trainer.engine.device` means here. Raises PlacementError for a GPU that is not there."""
    available = torch.cuda.is_available()
    if section.device == "cuda" and not available:
        raise PlacementError(
            "trainer.engine.device is cuda, but torch sees no GPU here. Write `auto` or `cpu`, or "
            "run with --here."
        )
    return torch.device("cuda" if available and section.device != "cpu" else "cpu")
