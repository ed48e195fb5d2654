"""An optimizer's state on disk: tensors as safetensors, numbers as JSON, nothing pickled.

torch's own `load_state_dict` is not used: it casts a state to its parameter's type, which loses bits
where an optimizer keeps float32 for bfloat16 weights, and it takes settings over that the run file sets.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from strop.errors import CheckpointError
from strop.training.parts import StoredTensors

TENSORS, NUMBERS = "optimizer.safetensors", "optimizer.json"
"""The files of an optimizer's state."""
COUNTERS = ("step", "weight_sum", "lr_max", "train_mode")
"""What pytorch_optimizer counts in a group, among settings that are the run file's."""
PROJECTOR = "projector"
"""GaLore's space of one matrix, the only state that is neither tensor nor number."""


def optimizer_tensors(
    optimizer: torch.optim.Optimizer, names: Mapping[Tensor, str]
) -> Iterator[tuple[str, Tensor]]:
    """The state's tensors, each under its parameter's name and its own; what `TENSORS` holds."""
    return ((name, value) for name, value in _state(optimizer, names) if isinstance(value, Tensor))


def optimizer_numbers(optimizer: torch.optim.Optimizer, names: Mapping[Tensor, str]) -> str:
    """The rest of the state, and what is counted in each group; what `NUMBERS` holds."""
    numbers = {name: value for name, value in _state(optimizer, names) if not isinstance(value, Tensor)}
    counters = [{key: group[key] for key in COUNTERS if key in group} for group in optimizer.param_groups]
    kind = type(optimizer).__name__
    return json.dumps({"kind": kind, "groups": counters, "state": numbers}) + "\n"


def _state(optimizer: torch.optim.Optimizer, names: Mapping[Tensor, str]) -> Iterator[tuple[str, Any]]:
    for parameter, state in optimizer.state.items():
        for key, value in state.items():
            yield f"{names[parameter]}/{key}", value.ortho_matrix if key == PROJECTOR else value


def read_optimizer(folder: Path, optimizer: torch.optim.Optimizer, names: Mapping[Tensor, str]) -> None:
    """Take back what the two files hold. Raises CheckpointError if it is of another optimizer."""
    stored = StoredTensors(folder, TENSORS)
    try:
        numbers = json.loads((folder / NUMBERS).read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder / NUMBERS} cannot be read: {error}") from error
    kind = type(optimizer).__name__
    if numbers["kind"] != kind:
        raise CheckpointError(
            f"{folder / TENSORS} holds the state of {numbers['kind']}, and this run's optimizer is {kind}: "
            "`optimizer` in the run file is not what it was when the checkpoint was written."
        )
    owner = {names[p]: (p, group) for group in optimizer.param_groups for p in group["params"]}
    for path in (*stored.shapes, *numbers["state"]):
        name, key = path.rsplit("/", 1)
        parameter, group = owner[name]
        value = stored.read_like(path, parameter) if path in stored.shapes else numbers["state"][path]
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
