"""Placement keys, and their replacement by `--here`.

Placement keys change results only by rounding: devices, nodes, parallel sizes, engines, offload, the
sampler's precision, fused kernels. A run with a placement that this machine does not have is refused; with
`--here` (or STROP_HERE=1) the key is overridden, with a notice.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from strop.config.effective_reward import configured_rewards
from strop.config.plan.machine import this_machine
from strop.config.schema.run import Run
from strop.errors import ConfigError, PlacementError


@dataclass(frozen=True, slots=True)
class OverriddenKey:
    """Placement key that `--here` overrides."""

    key: str
    value: Any
    replacement: str
    """Replacement on this machine."""

    def __str__(self) -> str:
        return f"{self.key}={self.value}: {self.replacement}"


def here_requested(flag: bool) -> bool:
    """Return whether `--here` or STROP_HERE is set. Raises ConfigError for an unknown value of STROP_HERE."""
    value = os.environ.get("STROP_HERE", "").strip().lower()
    if value not in ("", "0", "1", "true", "false"):
        raise ConfigError(
            f"The environment variable STROP_HERE is {value!r}; write STROP_HERE=1, or unset it."
        )
    return flag or value in ("1", "true")


def count_cuda_devices() -> int:
    """Return the number of GPUs of this machine, or of the one that `--machine` describes, on one node."""
    return max(node.gpus for node in this_machine().nodes)


def placement_error(lacking: Sequence[OverriddenKey]) -> PlacementError:
    """Return the error for a placement that this machine does not have; it names every such key and
    `--here`."""
    listed = "; ".join(str(item) for item in lacking)
    return PlacementError(
        "This run asks for a placement that this machine, or this version of Strop, does not have. With "
        "--here (or STROP_HERE=1) the run uses this machine, and all other keys keep their meaning. Keys "
        f"that --here would override, with the replacement: {listed}."
    )


def configured_devices(run: Run) -> Mapping[str, str]:
    """Return the device of each of the run's models, by its key."""
    scoring = {
        f"{where}.models.{index}.device": model.device
        for where, reward in configured_rewards(run).items()
        for index, model in enumerate(reward.models)
    }
    return {"trainer.engine.device": run.trainer.engine.device, **scoring}
