"""An optimizer's state on disk: tensors as safetensors, numbers as JSON, nothing pickled.

torch's own `load_state_dict` is not used: it casts a state to its parameter's type, which loses bits
where an optimizer keeps float32 for bfloat16 weights, and it takes settings over that the run file sets.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from strop.errors import CheckpointError
from strop.training.state import read_tensors, write_tensors

TENSORS, NUMBERS = "optimizer.safetensors", "optimizer.json"
"""The files of `write_optimizer`."""
COUNTERS = ("step", "weight_sum", "lr_max", "train_mode")
"""What pytorch_optimizer counts in a group, among settings that are the run file's."""
PROJECTOR = "projector"
"""GaLore's space of one matrix, the only state that is neither tensor nor number."""


def write_optimizer(folder: Path, optimizer: torch.optim.Optimizer, names: Mapping[Tensor, str]) -> None:
    """Write the state of every parameter by its name, and what is counted in each group."""
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, float] = {}
    for parameter, state in optimizer.state.items():
        for key, value in state.items():
            value = value.ortho_matrix if key == PROJECTOR else value
            kept: dict[str, Any] = tensors if isinstance(value, Tensor) else numbers
            kept[f"{names[parameter]}/{key}"] = value
    counters = [{key: group[key] for key in COUNTERS if key in group} for group in optimizer.param_groups]
    write_tensors(folder / TENSORS, tensors)
    kind = type(optimizer).__name__
    (folder / NUMBERS).write_text(json.dumps({"kind": kind, "groups": counters, "state": numbers}) + "\n")


def read_optimizer(folder: Path, optimizer: torch.optim.Optimizer, names: Mapping[Tensor, str]) -> None:
    """Take back what `write_optimizer` wrote. Raises CheckpointError if it is of another optimizer."""
    saved: dict[str, Any] = dict(read_tensors(folder / TENSORS))
    try:
        numbers = json.loads((folder / NUMBERS).read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder / NUMBERS} cannot be read: {error}") from error
    saved |= numbers["state"]
    kind = type(optimizer).__name__
    if numbers["kind"] != kind:
        raise CheckpointError(
            f"{folder / TENSORS} holds the state of {numbers['kind']}, and this run's optimizer is {kind}: "
            "`optimizer` in the run file is not what it was when the checkpoint was written."
        )
    owner = {names[p]: (p, group) for group in optimizer.param_groups for p in group["params"]}
    for path, value in saved.items():
        name, key = path.rsplit("/", 1)
        parameter, group = owner[name]
        optimizer.state[parameter][key] = _restore(key, value, parameter, group)
    for group, counters in zip(optimizer.param_groups, numbers["groups"], strict=True):
        group.update(counters)


def _restore(key: str, value: Any, parameter: nn.Parameter, group: Mapping[str, Any]) -> Any:
    if not isinstance(value, Tensor):
        return value
    if key != "step" or group.get("fused"):  # torch's unfused optimizers count on the CPU
        value = value.to(parameter.device)
    if key != PROJECTOR:
        return value
    from pytorch_optimizer.optimizer.utils.galore import GaLoreProjector

    settings = ("rank", "update_proj_gap", "scale", "projection_type")
    projector = GaLoreProjector(**{name: group[name] for name in settings})
    projector.ortho_matrix = value
    return projector
