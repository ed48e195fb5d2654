"""Options of `gpu_evidence.py`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the script."""

    device: torch.device
    small: bool
    """Sizes with which the script runs on a CPU in seconds."""
    model: Path | None
    data: Path | None
