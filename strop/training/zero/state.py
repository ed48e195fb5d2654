"""Weights and optimizer state of a model in DeepSpeed's engine, as rows of Strop's checkpoints, and back.

DeepSpeed divides a flat tensor of all parameters. Its accessors gather one parameter at a time, of which each rank
keeps its rows, so that a checkpoint has the layout of FSDP2's and no rank ever holds a whole model.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from strop.models.dtensor import full_zero_parameter
from strop.training.checkpoints.file_writer import OPTIMIZER_TENSORS_FILE
from strop.training.checkpoints.sharded_tensors import ShardedTensors
from strop.training.mixed_precision import trainable_parameters
from strop.training.optimizers.state import read_optimizer_scalars

_STEP = "step"
"""Key of the number of updates in the state of torch's optimizers."""


class ZeroState:
    """State of the trained parameters; all ranks call the same methods."""

    divides_optimizer = False

    def __init__(self, engine: Any, model: nn.Module) -> None:
        self._engine = engine
        self._zero = engine.optimizer
        self._parameters = trainable_parameters(model)
        self._mesh = init_device_mesh(engine.device.type, (distributed.get_world_size(),))

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Parameter groups of the optimizer, which hold its settings."""
        groups: list[dict[str, Any]] = self._zero.param_groups
        return groups

    @property
    def shapes(self) -> dict[str, torch.Size]:
        """Shape of each full parameter; one of ZeRO-3 is empty itself."""
        return {name: getattr(p, "ds_shape", p.shape) for name, p in self._parameters.items()}

    @property
    def master_parts(self) -> list[Tensor]:
        """This rank's parts of the float32 masters, over which the optimizer runs."""
        name = "fp32_partitioned_groups_flat" if self._is_partitioned else "single_partition_of_fp32_groups"
        parts: list[Tensor] = getattr(self._zero, name)
        return parts

    def weights(self) -> dict[str, Tensor]:
        """This rank's rows of the float32 master weights."""
        return {name: _rows(full_zero_parameter(p), self._mesh) for name, p in self._parameters.items()}

    def optimizer_tensors(self) -> dict[str, Tensor]:
        """This rank's rows of the optimizer's tensors, named `parameter/key`; empty before the first update."""
        from deepspeed.utils import safe_get_full_optimizer_state

        self._link_states()
        found: dict[str, Tensor] = {}
        state = self._optimizer.state[self.master_parts[0]]
        for name, parameter in self._parameters.items():
            for key, value in state.items():
                if key == _STEP:
                    found[f"{name}/{key}"] = value.detach().clone()
                elif isinstance(value, Tensor):
                    full = safe_get_full_optimizer_state(parameter, key)
                    found[f"{name}/{key}"] = _rows(full, self._mesh)
        return found

    def optimizer_scalars(self) -> str:
        """Content of the file of the optimizer's numbers: those of torch's optimizers are tensors."""
        return json.dumps(
            {"kind": type(self._optimizer).__name__, "groups": [{} for _ in self.param_groups], "state": {}}
        )

    @torch.no_grad()
    def load_weights(self, saved: ShardedTensors) -> None:
        """Set the weights to those of a checkpoint of any engine and number of ranks."""
        from deepspeed.utils import safe_set_full_fp32_param, safe_set_local_fp32_param

        persistent = getattr(self._zero, "persistent_parameters", [])
        if persistent:
            persistent[0].partition(persistent)
        for name, parameter in self._parameters.items():
            value = saved.read(name).to(self._engine.device, torch.float32)
            if self._is_partitioned:
                own = _partition_of(value, parameter)
                safe_set_local_fp32_param(parameter, own)
                parameter.ds_tensor.data.copy_(own)  # type: ignore[attr-defined]
            else:
                safe_set_full_fp32_param(parameter, value)
                parameter.data.copy_(value)
        if persistent:
            persistent[0].all_gather(persistent)

    def load_optimizer(self, folder: Path) -> None:
        """Set the optimizer's state. Raises CheckpointError for another optimizer's state."""
        from deepspeed.utils import safe_set_full_optimizer_state, safe_set_local_optimizer_state

        saved = ShardedTensors(folder, OPTIMIZER_TENSORS_FILE)
        read_optimizer_scalars(folder, self._optimizer)
        if not saved.shapes:
            return
        first = next(iter(self._parameters))
        keys = [path.removeprefix(f"{first}/") for path in saved.shapes if path.startswith(f"{first}/")]
        self._allocate(keys, saved.read(f"{first}/{_STEP}") if _STEP in keys else None)
        for name, parameter in self._parameters.items():
            for key in keys:
                if key == _STEP:
                    continue
                value = saved.read(f"{name}/{key}").to(self._engine.device, torch.float32)
                if self._is_partitioned:
                    safe_set_local_optimizer_state(parameter, _partition_of(value, parameter), key)
                else:
                    safe_set_full_optimizer_state(parameter, value, key)

    def _allocate(self, keys: list[str], step: Tensor | None) -> None:
        """Create the state that the optimizer's first update would create."""
        for flat in self.master_parts:
            state: dict[str, Any] = {key: torch.zeros_like(flat) for key in keys if key != _STEP}
            if step is not None:
                is_fused = self.param_groups[0].get("fused")
                state[_STEP] = step.clone().to(flat.device if is_fused else "cpu")
            self._optimizer.state[flat] = state
        self._link_states()

    def _link_states(self) -> None:
        """Give the accessors the state of all groups: DeepSpeed links them once, after the first group's update."""
        if not self._is_partitioned:
            self._zero._hp_optimizer_states_linked = False
            self._zero._lazy_init_hp_params_optimizer_state()

    @property
    def _is_partitioned(self) -> bool:
        """Whether the parameters themselves are partitioned (ZeRO-3)."""
        return bool(self._engine.zero_optimization_partition_weights())

    @property
    def _optimizer(self) -> torch.optim.Optimizer:
        optimizer: torch.optim.Optimizer = self._zero.optimizer
        return optimizer


def _rows(full: Tensor, mesh: DeviceMesh) -> DTensor:
    """A copy of this rank's rows of a tensor, as FSDP2 divides it."""
    rows = full.chunk(mesh.size())
    rank = mesh.get_local_rank()
    own = rows[rank].clone() if rank < len(rows) else full[:0].clone()
    return DTensor.from_local(
        own, mesh, [Shard(0)], run_check=False, shape=full.shape, stride=full.contiguous().stride()
    )


def _partition_of(full: Tensor, parameter: Any) -> Tensor:
    """This rank's part of a parameter of ZeRO-3, which is flat and padded."""
    size = parameter.ds_tensor.numel()
    first = distributed.get_rank() * size
    own = torch.zeros(size, dtype=full.dtype, device=full.device)
    part = full.flatten()[first : first + size]
    own[: len(part)] = part
    return own
