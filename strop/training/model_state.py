"""Weights and optimizer state of a trained model on one rank, as a checkpoint holds them.

Tensors of an optimizer are stored as safetensors, numbers as JSON. torch's `load_state_dict` is not used: it casts a
state to its parameter's dtype, which loses precision where an optimizer keeps float32 for bfloat16 weights, and it
overwrites settings that the run file sets.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from strop.errors import CheckpointError
from strop.training.checkpoints.file_writer import OPTIMIZER_SCALARS_FILE, OPTIMIZER_TENSORS_FILE
from strop.training.checkpoints.tensors import ShardedTensors

_GROUP_COUNTERS = ("step", "weight_sum", "lr_max", "train_mode")
"""Counters of pytorch_optimizer in a parameter group, which otherwise holds settings."""
_GALORE_PROJECTOR = "projector"
"""State key of GaLore's projector, the only state that is neither a tensor nor a number."""


class ModelState(Protocol):
    """State of the trained parameters; where it is sharded, all ranks call the same methods."""

    @property
    def divides_optimizer(self) -> bool:
        """Whether each rank has whole tensors of the optimizer that no other one has."""
        ...

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Parameter groups of the optimizer, which hold its settings."""
        ...

    @property
    def shapes(self) -> dict[str, torch.Size]:
        """Shape of each full parameter."""
        ...

    def weights(self) -> Mapping[str, Tensor]:
        """Weights by name, or this rank's rows of them."""
        ...

    def optimizer_tensors(self) -> Mapping[str, Tensor]:
        """Tensors of the optimizer, named `parameter/key`, or this rank's rows of them."""
        ...

    def optimizer_scalars(self) -> str:
        """Content of `OPTIMIZER_SCALARS_FILE`."""
        ...

    def load_weights(self, saved: ShardedTensors) -> None:
        """Set the weights."""
        ...

    def load_optimizer(self, folder: Path) -> None:
        """Set the optimizer's state. Raises CheckpointError for another optimizer's state."""
        ...


class TorchState:
    """State in torch's own parameters and optimizer, plain or in FSDP2's shards."""

    divides_optimizer = False

    def __init__(self, parameters: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer) -> None:
        self._parameters = parameters
        self._optimizer = optimizer
        self._names: dict[Tensor, str] = {parameter: name for name, parameter in parameters.items()}

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self._optimizer.param_groups

    @property
    def shapes(self) -> dict[str, torch.Size]:
        return {name: parameter.shape for name, parameter in self._parameters.items()}

    def weights(self) -> Mapping[str, Tensor]:
        return self._parameters

    def optimizer_tensors(self) -> Mapping[str, Tensor]:
        return dict(optimizer_tensors(self._optimizer, self._names))

    def optimizer_scalars(self) -> str:
        return optimizer_scalars(self._optimizer, self._names)

    @torch.no_grad()
    def load_weights(self, saved: ShardedTensors) -> None:
        for name, parameter in self._parameters.items():
            parameter.copy_(saved.read_like(name, parameter))

    def load_optimizer(self, folder: Path) -> None:
        load_optimizer_state(folder, self._optimizer, self._names)


def optimizer_tensors(
    optimizer: torch.optim.Optimizer, names: Mapping[Tensor, str]
) -> Iterator[tuple[str, Tensor]]:
    """Tensors of the state, named `parameter/key`; the content of `OPTIMIZER_TENSORS_FILE`."""
    return ((name, value) for name, value in _state(optimizer, names) if isinstance(value, Tensor))


def optimizer_scalars(optimizer: torch.optim.Optimizer, names: Mapping[Tensor, str]) -> str:
    """Numbers of the state and counters of each group; the content of `OPTIMIZER_SCALARS_FILE`."""
    numbers = {name: value for name, value in _state(optimizer, names) if not isinstance(value, Tensor)}
    counters = [
        {key: group[key] for key in _GROUP_COUNTERS if key in group} for group in optimizer.param_groups
    ]
    kind = type(optimizer).__name__
    return json.dumps({"kind": kind, "groups": counters, "state": numbers}) + "\n"


def _state(optimizer: torch.optim.Optimizer, names: Mapping[Tensor, str]) -> Iterator[tuple[str, Any]]:
    # Not in the order of `optimizer.state`, which is another one after a resume: the files would differ.
    for parameter in (each for group in optimizer.param_groups for each in group["params"]):
        for key, value in sorted(optimizer.state.get(parameter, {}).items()):
            yield f"{names[parameter]}/{key}", value.ortho_matrix if key == _GALORE_PROJECTOR else value


def load_optimizer_state(
    folder: Path,
    optimizer: torch.optim.Optimizer,
    names: Mapping[Tensor, str],
    only: Set[str] | None = None,
) -> None:
    """Restore the state from the two files, with `only` that of these parameters. Raises CheckpointError for another
    optimizer's state."""
    stored = ShardedTensors(folder, OPTIMIZER_TENSORS_FILE)
    numbers = read_optimizer_scalars(folder, optimizer)
    owner = {names[p]: (p, group) for group in optimizer.param_groups for p in group["params"]}
    for path in (*stored.shapes, *numbers["state"]):
        name, key = path.rsplit("/", 1)
        if only is not None and name not in only:
            continue
        parameter, group = owner[name]
        value = stored.read_like(path, parameter) if path in stored.shapes else numbers["state"][path]
        optimizer.state[parameter][key] = _restore(key, value, parameter, group)
    for group, counters in zip(optimizer.param_groups, numbers["groups"], strict=True):
        group.update(counters)


def read_optimizer_scalars(folder: Path, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Content of `OPTIMIZER_SCALARS_FILE`. Raises CheckpointError for another optimizer's state."""
    try:
        numbers: dict[str, Any] = json.loads((folder / OPTIMIZER_SCALARS_FILE).read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder / OPTIMIZER_SCALARS_FILE} cannot be read: {error}") from error
    kind = type(optimizer).__name__
    if numbers["kind"] != kind:
        raise CheckpointError(
            f"{folder / OPTIMIZER_TENSORS_FILE} holds the state of {numbers['kind']}, but this run's optimizer is "
            f"{kind}: `optimizer` in the run file has changed since the checkpoint was written."
        )
    return numbers


def _restore(key: str, value: Any, parameter: nn.Parameter, group: Mapping[str, Any]) -> Any:
    if not isinstance(value, Tensor):
        return value
    if key != "step" or group.get("fused"):  # torch's unfused optimizers keep the step count on the CPU
        value = value.to(parameter.device)
    if key != _GALORE_PROJECTOR:
        return value
    from pytorch_optimizer.optimizer.utils.galore import GaLoreProjector

    settings = ("rank", "update_proj_gap", "scale", "projection_type")
    projector = GaLoreProjector(**{name: group[name] for name in settings})
    projector.ortho_matrix = value
    return projector
