"""Weights and optimizer state of a trained model on one rank, as a checkpoint holds them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from strop.training.checkpoints.sharded_tensors import ShardedTensors
from strop.training.optimizers.state import load_optimizer_state, optimizer_scalars, optimizer_tensors


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
