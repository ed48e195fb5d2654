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


def find_devices(wanted: Literal["auto", "cpu", "cuda"], ranks: int) -> Literal["cpu", "cuda"]:
    """The kind that each of several ranks has one of: a GPU of its own, or the CPU with all others.

    Raises PlacementError where there are fewer GPUs than ranks.
    """
    if find_device(wanted).type == "cpu":
        return "cpu"
    gpus = torch.cuda.device_count()
    if gpus < ranks:
        raise PlacementError(
            f"trainer.engine.ranks is {ranks}, and this machine has {gpus} GPUs: each rank wants one of its "
            f"own. Write ranks: {gpus}, or device: cpu."
        )
    return "cuda"
