"""Loading of trained models onto devices: whole on one device; see `fsdp2` for shards on several ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar, cast

import torch
from torch import Tensor, nn

from strop.config.schema.model import ModelConfig
from strop.config.schema.policy_gradient import HeadInit
from strop.models.compiled_layers import compile_layers
from strop.models.loading import load_model, load_trained
from strop.models.lora import add_lora, load_adapter
from strop.models.packed_attention.model_ranks import SequenceGroup
from strop.models.shared_weights import SharedTensors
from strop.models.value_model import ValueModel, load_value_model
from strop.training.device import find_device
from strop.training.mixed_precision import ComputeCopy, make_compute_copy
from strop.training.model_state import ModelState

T = TypeVar("T")


def _without_communication(is_last: bool) -> None:
    """Gradients of a model in one process are not communicated."""


class ModelCall(Protocol):
    """Calls a function with a model and further arguments, while the model's parameters are available."""

    def __call__(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T: ...


class ShardedOptimizer(Protocol):
    """A library's own backward pass and updates of a model, in place of torch's."""

    def attach(self, optimizer: torch.optim.Optimizer, max_grad_norm: float | None) -> ModelState:
        """Take over the model and its optimizer; returns their state."""
        ...

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of this rank's loss."""
        ...

    def step(self) -> float:
        """Clip, update, and clear the gradient; returns the norm before clipping, which is not finite if there was no
        update."""
        ...


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A trained model on its devices."""

    model: nn.Module
    """Model with the trained parameters."""
    decoder: nn.Module
    """The Hugging Face model in it, with its adapter."""
    call: ModelCall
    compute_copy: ComputeCopy | None = None
    """Copy in the compute dtype; None where the model itself runs forward passes."""
    note: str = ""
    """Remark on how the model was loaded, for the run's description; empty for none."""
    before_backward: Callable[[bool], None] = _without_communication
    """Call before the backward pass of each micro-batch, with whether it is the last one of an update."""
    sharded_optimizer: ShardedOptimizer | None = None
    """Owner of the backward pass and of updates; None where torch's own are used."""
    shared: SharedTensors | None = None
    """The parameters in memory that other processes map; None for this process's own."""


class Parallelizer(Protocol):
    """Loads models onto the devices of this process's ranks."""

    @property
    def device(self) -> torch.device:
        """Device of this rank, on which micro-batches are built."""
        ...

    @property
    def sequence_group(self) -> SequenceGroup | None:
        """Ranks that divide the tokens of each micro-batch; None where this rank gets all of them."""
        ...

    def load_policy(self, section: ModelConfig, head: HeadInit | None = None) -> LoadedModel:
        """The trained policy, with a new adapter where the section has `lora`; or with `head` a trained classifier of
        one output. Raises ModelError."""
        ...

    def load_reference(self, section: ModelConfig) -> ModelCall:
        """A frozen model. Raises ModelError."""
        ...

    def load_critic(self, section: ModelConfig, head: HeadInit) -> LoadedModel:
        """A trained `ValueModel`. Raises ModelError."""
        ...


@dataclass(frozen=True, slots=True)
class SingleDevice:
    """Loads models whole onto one device."""

    device: torch.device

    @property
    def sequence_group(self) -> SequenceGroup | None:
        """None: there is one rank."""
        return None

    def load_policy(self, section: ModelConfig, head: HeadInit | None = None) -> LoadedModel:
        base = load_trained(section, head, device=self.device)
        model = with_adapter(base, section)
        copy = make_compute_copy(model, section)
        computing = copy.model if copy else model
        compile_layers(computing, section)
        return LoadedModel(model, model, DirectCall(computing), copy)

    def load_reference(self, section: ModelConfig) -> ModelCall:
        return DirectCall(load_model(section, device=self.device, trainable=False))

    def load_critic(self, section: ModelConfig, head: HeadInit) -> LoadedModel:
        model = load_value_model(section, head=head, device=self.device)
        copy = make_compute_copy(model, section)
        computing = cast(ValueModel, copy.model) if copy else model
        compile_layers(computing.decoder, section)
        return LoadedModel(model, model.decoder, DirectCall(computing), copy)


def single_device(device: Literal["auto", "cpu", "cuda"]) -> SingleDevice:
    """The device of this process. Raises PlacementError where there is no GPU and one is required."""
    return SingleDevice(find_device(device))


def with_adapter(base: Any, section: ModelConfig) -> nn.Module:
    """The model with an adapter where the section has `lora`, new or of a folder; otherwise the model itself.

    Raises ModelError for an adapter that does not fit the model.
    """
    if section.lora is None:
        model: nn.Module = base
        return model
    adapted = add_lora(base, section.lora, getattr(torch, section.dtype))
    if section.lora.adapter is not None:
        load_adapter(adapted, section.lora, section.lora.adapter)
    return adapted


@dataclass(frozen=True, slots=True)
class DirectCall:
    """The call of a model that is whole in this process."""

    model: nn.Module

    def __call__(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        return function(self.model, *args, **kwargs)
