"""What this machine has, and what `--here` means.

Placement is what changes results only by rounding: devices, nodes, parallel sizes, engines,
offload, the sampler's precision, fused kernels. A run that asks for a placement this machine
lacks is refused; with `--here` (or STROP_HERE=1) it is set aside by name instead.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from strop.errors import ConfigError, PlacementError


@dataclass(frozen=True, slots=True)
class SetAside:
    """One placement key that `--here` put aside."""

    key: str
    value: Any
    instead: str
    """What this machine does in its place."""

    def __str__(self) -> str:
        return f"{self.key}={self.value}: {self.instead}"


def wants_here(flag: bool) -> bool:
    """Whether `--here` or STROP_HERE was said. Raises ConfigError for a STROP_HERE that is no yes or no."""
    said = os.environ.get("STROP_HERE", "").strip().lower()
    if said not in ("", "0", "1", "true", "false"):
        raise ConfigError(
            f"The environment variable STROP_HERE is {said!r}; write STROP_HERE=1, or unset it."
        )
    return flag or said in ("1", "true")


def cuda_devices() -> int:
    """GPUs that a CUDA program would see here, asked of the driver itself: torch is not imported for it."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


def refuse(lacking: Sequence[SetAside]) -> PlacementError:
    """The error for a run that asks for what is not here. It names every such key, and `--here`."""
    listed = "; ".join(str(item) for item in lacking)
    return PlacementError(
        "This run asks for a placement that this machine, or this version of Strop, does not have. With "
        "--here (or STROP_HERE=1) it runs on what is here, and all other keys mean what they say. What "
        f"--here would set aside, and what would be done instead: {listed}."
    )
