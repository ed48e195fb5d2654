"""Selection of the device for this process or its ranks."""

from __future__ import annotations

from typing import Literal, assert_never

import torch

from strop.errors import PlacementError
from strop.workers.start import AgentPlacement, LocalPlacement, RankPlacement, RayPlacement


def find_device(wanted: Literal["auto", "cpu", "cuda"], key: str = "trainer.engine.device") -> torch.device:
    """The device that the run file's `key` selects. Raises PlacementError for `cuda` without a GPU."""
    available = torch.cuda.is_available()
    if wanted == "cuda" and not available:
        raise PlacementError(
            f"{key} is cuda, but torch finds no GPU on this machine. Write `auto` or `cpu`, or run with --here."
        )
    return torch.device("cuda" if available and wanted != "cpu" else "cpu")


def find_rank_device_type(
    wanted: Literal["auto", "cpu", "cuda"], ranks: int, placement: RankPlacement
) -> Literal["cpu", "cuda"]:
    """The device type of several ranks: `cuda` for one GPU each, or `cpu`.

    Raises PlacementError where this machine has fewer GPUs than ranks.
    """
    if find_device(wanted).type == "cpu":
        return "cpu"
    gpus = torch.cuda.device_count()
    match placement:
        case LocalPlacement():
            here, advice = ranks, f"Write ranks: {gpus}"
        case RayPlacement():
            here, advice = 1, "Give the cluster's nodes GPUs"
        case AgentPlacement():
            here, advice = placement.local_ranks, f"Start {gpus} processes per node"
        case _:
            assert_never(placement)
    if gpus < here:
        raise PlacementError(
            f"{here} of the ranks (trainer.engine.ranks is {ranks}) are on this machine, which has {gpus} GPUs, and "
            f"each rank needs its own. {advice}, or write device: cpu."
        )
    return "cuda"
