"""Selection of the device for this process or its ranks."""

from __future__ import annotations

from typing import Literal

import torch

from strop.errors import PlacementError


def find_device(wanted: Literal["auto", "cpu", "cuda"], key: str = "trainer.engine.device") -> torch.device:
    """The device that the run file's `key` selects. Raises PlacementError for `cuda` without a GPU."""
    available = torch.cuda.is_available()
    if wanted == "cuda" and not available:
        raise PlacementError(
            f"{key} is cuda, but torch finds no GPU on this machine. Write `auto` or `cpu`, or run with --here."
        )
    return torch.device("cuda" if available and wanted != "cpu" else "cpu")


def find_rank_device_type(wanted: Literal["auto", "cpu", "cuda"], ranks: int) -> Literal["cpu", "cuda"]:
    """The device type of several ranks: `cuda` for one GPU each, or `cpu`.

    Raises PlacementError where this machine has fewer GPUs than ranks.
    """
    if find_device(wanted).type == "cpu":
        return "cpu"
    gpus = torch.cuda.device_count()
    if gpus < ranks:
        raise PlacementError(
            f"trainer.engine.ranks is {ranks}, but this machine has {gpus} GPUs, and each rank needs its own. "
            f"Write ranks: {gpus}, or device: cpu."
        )
    return "cuda"
