"""Where a model's parameters stand: all in one process, or in parts on several ranks.

FSDP2 (`fully_shard`) brings a module's parameters together for the time of its `forward`, and of its
backward pass, and gives each rank the sum of its part of the gradient over all ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import torch
import torch.export
from torch import distributed, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from strop.config.schema import Run
from strop.config.schema.model import Model
from strop.models.attention import base_model
from strop.training.device import find_device
from strop.training.precision import ComputeCopy, compute_copy
from strop.types import TokenOutputs

T = TypeVar("T")

torch.export.register_dataclass(TokenOutputs)  # so that FSDP's hooks find the tensors in it


class Inside(Protocol):
    """Calls a function of a model with its other arguments, while the model's parameters are all there."""

    def __call__(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T: ...


@dataclass(frozen=True, slots=True)
class Placed:
    """A model where it belongs."""

    copy: ComputeCopy | None
    """Its double that computes, where it does not compute itself."""
    inside: Inside


class Place(Protocol):
    """Where models go."""

    @property
    def device(self) -> torch.device:
        """Where micro-batches have to be."""
        ...

    @property
    def loads_to(self) -> torch.device:
        """Where a model is read to before it is placed."""
        ...

    def put(self, model: nn.Module, decoder: nn.Module, section: Model) -> Placed:
        """Place a model that is trained; `decoder` is the Hugging Face model in it, perhaps adapted."""
        ...

    def put_frozen(self, model: nn.Module, section: Model) -> Inside:
        """Place a model that stays as it is."""
        ...


@dataclass(frozen=True, slots=True)
class Here:
    """All in this process."""

    device: torch.device

    @property
    def loads_to(self) -> torch.device:
        return self.device

    def put(self, model: nn.Module, decoder: nn.Module, section: Model) -> Placed:
        copy = compute_copy(model, section)
        return Placed(copy, _WithWhole(copy.model if copy else model))

    def put_frozen(self, model: nn.Module, section: Model) -> Inside:
        return _WithWhole(model)


def here(run: Run) -> Place:
    """This process's device. Raises PlacementError for a GPU that is not there."""
    return Here(find_device(run.trainer.engine.device))


@dataclass(frozen=True, slots=True)
class Shards:
    """In equal parts on all ranks, this process being one."""

    device: torch.device
    mesh: DeviceMesh

    @classmethod
    def over_all_ranks(cls, device: torch.device) -> Shards:
        """`device` is this rank's own."""
        return cls(device, init_device_mesh(device.type, (distributed.get_world_size(),)))

    @property
    def loads_to(self) -> torch.device:
        # A whole model might not fit where its part goes.
        return torch.device("cpu")

    def put(self, model: nn.Module, decoder: nn.Module, section: Model) -> Placed:
        policy = MixedPrecisionPolicy()
        if section.compute_dtype not in (None, section.dtype):
            policy = MixedPrecisionPolicy(getattr(torch, section.compute_dtype), torch.float32)
        return Placed(None, self._shard(model, decoder, policy, reshard=True))

    def put_frozen(self, model: nn.Module, section: Model) -> Inside:
        # Its head stays together: a divergence from it is computed inside of another model.
        return self._shard(model, model, MixedPrecisionPolicy(), reshard=False)

    def _shard(
        self, model: nn.Module, decoder: nn.Module, policy: MixedPrecisionPolicy, *, reshard: bool
    ) -> Inside:
        base = base_model(decoder)
        names = set(base._no_split_modules or ())
        for module in base.modules():
            if type(module).__name__ in names:
                fully_shard(module, mesh=self.mesh, mp_policy=policy)
        root = _Root(model)
        # A micro-batch is more than its tokens: advantages and log-probs stay float32.
        outermost = replace(policy, cast_forward_inputs=False)
        fully_shard(root, mesh=self.mesh, mp_policy=outermost, reshard_after_forward=reshard)
        for module in root.modules():
            if isinstance(module, FSDPModule):
                # A loss is divided by a count over all ranks, so gradients are added and not averaged.
                module.set_force_sum_reduction_for_comms(True)
                module.set_gradient_divide_factor(1.0)
        return root


class _Root(nn.Module):
    """What FSDP's hooks surround: anything may be done with the model inside."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        return function(self.model, *args, **kwargs)


@dataclass(frozen=True, slots=True)
class _WithWhole:
    model: nn.Module

    def __call__(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        return function(self.model, *args, **kwargs)
