"""Models for DeepSpeed's ZeRO: trained ones in its engine, frozen ones sharded by FSDP2.

DeepSpeed divides a flat tensor of all parameters. Its accessors gather one parameter at a time, of which each rank
keeps its rows, so that a checkpoint has the layout of FSDP2's and no rank ever holds a whole model.
"""

from __future__ import annotations

import json
import logging
import math
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.nn import functional
from torch.utils._pytree import tree_flatten, tree_unflatten

from strop.config.deepspeed import engine_config, read_config, with_hidden_size, zero_settings
from strop.config.schema.model import ModelConfig
from strop.config.schema.policy_gradient import HeadInit
from strop.config.schema.trainer import DeepSpeedEngineConfig, Fsdp2EngineConfig
from strop.errors import MissingExtraError, ModelError
from strop.models.dtensor import full_zero_parameter
from strop.models.loading import load_trained
from strop.models.packed_attention.forward import base_model, split_sequences
from strop.models.packed_attention.model_ranks import SequenceGroup
from strop.models.value_head import head_of
from strop.models.value_model import load_value_model
from strop.training.checkpoints.file_writer import OPTIMIZER_TENSORS_FILE
from strop.training.checkpoints.tensors import ShardedTensors
from strop.training.mixed_precision import trainable_parameters
from strop.training.model_state import read_optimizer_scalars
from strop.training.parallel.fsdp2 import Fsdp2Parallelizer
from strop.training.parallel.mesh import RankMeshes
from strop.training.parallel.parallelize import LoadedModel, ModelCall, with_adapter

_CPU = torch.device("cpu")
T = TypeVar("T")
_STEP = "step"
"""Key of the number of updates in the state of torch's optimizers."""
_ACCELERATOR_ENV = "DS_ACCELERATOR"
_LOCAL_RANK_ENV = "LOCAL_RANK"
_DEPRECATED_COLLECTIVES = (
    r"`torch\.distributed\.(all_gather_into_tensor|reduce_scatter_tensor)` is deprecated"
)
"""Message of torch about operations that DeepSpeed uses."""
_SHARED_MEMORY_OP = "deepspeed_shm_comm"
"""Collective operations of CPU ranks in C++, which DeepSpeed compiles on first use; gloo does the same."""


@dataclass(frozen=True, slots=True)
class ZeroParallelizer:
    """Loads models for ZeRO; every rank calls the same methods, and reads a trained model whole before its division."""

    frozen: Fsdp2Parallelizer
    """Loader of the reference model and of teachers, of which each rank holds its shard."""
    config: Mapping[str, Any]
    """DeepSpeed configuration, with `auto` for sizes that depend on the model."""

    @classmethod
    def of(cls, engine: DeepSpeedEngineConfig, device: torch.device, meshes: RankMeshes) -> ZeroParallelizer:
        """`device` is this rank's own, and `meshes` are those of all ranks."""
        offloads = zero_settings(engine, read_config(engine)).offload_parameters
        frozen = Fsdp2EngineConfig(ranks=engine.ranks, reference_cpu_offload=offloads)
        return cls(Fsdp2Parallelizer(device, meshes, frozen), engine_config(engine, device.type))

    @property
    def sequence_group(self) -> SequenceGroup | None:
        return self.frozen.sequence_group

    @property
    def device(self) -> torch.device:
        return self.frozen.device

    def load_policy(self, section: ModelConfig, head: HeadInit | None = None) -> LoadedModel:
        model = with_adapter(load_trained(section, head, device=_CPU), section)
        base = base_model(model)
        if head is not None:
            return self._in_engine(model, model, head_of(base), section)
        output = base.get_output_embeddings()  # type: ignore[no-untyped-call]
        if type(output) is not nn.Linear:
            raise ModelError(
                "trainer.engine deepspeed needs a language-model head that is a plain linear layer, and this model's "
                f"is a {type(output).__name__}. Add the head to model.lora.exclude, or write engine: fsdp2."
            )
        return self._in_engine(model, model, output, section)

    def load_reference(self, section: ModelConfig) -> ModelCall:
        return self.frozen.load_reference(section)

    def load_critic(self, section: ModelConfig, head: HeadInit) -> LoadedModel:
        model = load_value_model(section, head=head, device=_CPU)
        return self._in_engine(model, model.decoder, model.head, section)

    def _in_engine(
        self, model: nn.Module, decoder: nn.Module, head: nn.Linear, section: ModelConfig
    ) -> LoadedModel:
        base = base_model(decoder)
        if self.sequence_group is not None:
            split_sequences(decoder, self.sequence_group)
        config = with_hidden_size(self.config, base.config.get_text_config().hidden_size)
        compute = section.compute_dtype or section.dtype
        for name, dtype in (("bf16", "bfloat16"), ("fp16", "float16")):
            config[name] = {**config.get(name, {}), "enabled": compute == dtype}
        # DeepSpeed takes a layer's gradients for complete once that of its input is, so that the input needs one.
        base.enable_input_require_grads()  # type: ignore[no-untyped-call]
        names = set(base._no_split_modules or ())
        layers = {type(module) for module in base.modules() if type(module).__name__ in names}
        call = ZeroModel(model, sorted(layers, key=str), head, self.device, config)
        return LoadedModel(model, decoder, call, sharded_optimizer=call)


class ZeroModel:
    """Calls functions with a model, and updates it, through DeepSpeed's engine; `attach` comes first.

    Every rank calls the same methods. DeepSpeed averages gradients over ranks, so that each rank's loss is
    multiplied by their number: losses are divided by counts over all ranks, and their gradients are summed.
    """

    def __init__(
        self,
        model: nn.Module,
        layers: Sequence[type[nn.Module]],
        head: nn.Linear,
        device: torch.device,
        config: Mapping[str, Any],
    ) -> None:
        """`layers` are gathered as a whole, `head` is read outside of its own forward pass, and `config` is a DeepSpeed
        configuration without `gradient_clipping`."""
        self._root = _ZeroRoot(model)
        self._layers = list(layers)
        self._head = head
        self._device = device
        self._config = config
        self._engine: Any = None

    def attach(self, optimizer: torch.optim.Optimizer, max_grad_norm: float | None) -> ZeroState:
        """Divide the model and the optimizer's state over the ranks; returns their state."""
        deepspeed = import_deepspeed(self._device.type)
        if self._config["zero_optimization"]["stage"] == 3:
            # Modules in a layer run in an order that depends on the micro-batch; all ranks must gather in one order.
            deepspeed.utils.set_z3_leaf_modules(self._root, self._layers)
            for parameter in self._head.parameters(recurse=False):
                deepspeed.zero.register_external_parameter(self._root, parameter)
        with local_rank(self._device):
            self._engine, *_ = deepspeed.initialize(
                model=self._root,
                optimizer=optimizer,
                config={**self._config, "gradient_clipping": max_grad_norm or 0.0},
            )
        return ZeroState(self._engine, self._root.model)

    def __call__(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        results: list[tuple[list[Any], Any]] = []

        def run(model: nn.Module) -> dict[str, Tensor]:
            leaves, structure = tree_flatten(function(model, *args, **kwargs))
            results.append((leaves, structure))
            learned = [leaf.flatten().float() for leaf in leaves if _is_learned(leaf)]
            return {"learned": torch.cat(learned)} if learned else {}

        with local_rank(self._device):
            joined = self._engine(run).get("learned")
        ((leaves, structure),) = results
        if joined is not None:
            learned = [i for i, leaf in enumerate(leaves) if _is_learned(leaf)]
            parts = joined.split([leaves[i].numel() for i in learned])
            for i, part in zip(learned, parts, strict=True):
                leaves[i] = part.view(leaves[i].shape).to(leaves[i].dtype)
        result: T = tree_unflatten(leaves, structure)
        return result

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of this rank's loss."""
        with local_rank(self._device):
            self._engine.backward(loss * distributed.get_world_size(), scale_wrt_gas=False)

    def step(self) -> float:
        """Clip and update; returns the norm before clipping, which is not finite if there was no update.

        An update in float16 whose gradient overflows is skipped, and the loss scale is reduced: its norm is 0.
        """
        with local_rank(self._device):
            self._engine.step()
        if self._engine.was_step_applied():
            return float(self._engine.get_global_grad_norm())
        return 0.0 if self._engine.fp16_enabled() else math.nan


class _ZeroRoot(nn.Module):
    """Module around which DeepSpeed gathers parameters; any function of the model can be called inside.

    Its result is one tensor: DeepSpeed's order of parameters would depend on which of several tensors a loss uses,
    and must be equal on all ranks.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, function: Callable[[nn.Module], dict[str, Tensor]]) -> dict[str, Tensor]:
        return function(self.model)


def _is_learned(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.requires_grad


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


def import_deepspeed(device_type: str) -> Any:
    """The module, for ranks on `cpu` or `cuda`. Raises MissingExtraError where it is not installed."""
    os.environ[_ACCELERATOR_ENV] = device_type
    try:
        import deepspeed
        from deepspeed import ops
    except ImportError as error:
        raise MissingExtraError(
            f"trainer.engine is deepspeed, and DeepSpeed cannot be imported ({error}): pip install 'strop[deepspeed]'"
        ) from error
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", message=_DEPRECATED_COLLECTIVES, category=FutureWarning)
    ops.__compatible_ops__[_SHARED_MEMORY_OP] = False
    return deepspeed


@contextmanager
def local_rank(device: torch.device) -> Iterator[None]:
    """While DeepSpeed runs: the index of this rank's device, which it reads from the environment."""
    before = os.environ.get(_LOCAL_RANK_ENV)
    os.environ[_LOCAL_RANK_ENV] = str(device.index or 0)
    try:
        yield
    finally:
        os.environ.pop(_LOCAL_RANK_ENV)
        if before is not None:
            os.environ[_LOCAL_RANK_ENV] = before


def close_deepspeed() -> None:
    """Forget DeepSpeed's process groups, numbers of modules and replacement of `linear`, if it is loaded, so that this
    process can join other ranks afterwards, which count from 0 and have torch's `linear`.

    With another `linear` than the others a rank would sum its gradients in another order, which ZeRO-2 mixes up.
    """
    if "deepspeed" not in sys.modules:
        return
    from deepspeed.comm import comm
    from deepspeed.runtime.zero import parameter_offload, partition_parameters
    from deepspeed.utils import groups

    comm.cdb = None
    groups._WORLD_GROUP = None
    partition_parameters.Init.param_id = 0
    parameter_offload.FWD_MODULE_STACK.clear()
    parameter_offload.DeepSpeedZeRoOffload._register_deepspeed_module.__defaults__[0][0] = 0
    functional.linear = getattr(
        partition_parameters.InsertPostInitMethodToModuleSubClasses, "linear_bk", functional.linear
    )
