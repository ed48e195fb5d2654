"""Sharded models on several ranks, with PyTorch's FSDP2 (`fully_shard`).

FSDP2 gathers a module's parameters for the duration of its forward and backward pass, and gives each rank
the sum over ranks of its shard of the gradient. Models are built on the meta device, and each rank reads its
own rows of the weights; a model for which that is not possible is read whole by every rank.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import torch
import torch.export
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from strop.config.schema.model import ModelConfig
from strop.models.dtensor import distribute_like
from strop.models.loading import load_model
from strop.models.logprobs import check_logits
from strop.models.meta_loading import MetaLoadingUnsupported, WeightFiles, build_on_meta
from strop.models.packed_attention.forward import base_model, enable_packed_attention
from strop.models.shared_weights import plain_name
from strop.models.value_model import HeadInit, ValueModel, load_value_model
from strop.training.parallel.mesh import ParallelDims
from strop.training.parallel.parallelize import LoadedModel, ModelCall, with_adapter
from strop.types import TokenOutputs

T = TypeVar("T")

torch.export.register_dataclass(TokenOutputs)  # so that FSDP's hooks find the tensors in it

_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Fsdp2Parallelizer:
    """Loads models in equal shards on all data-parallel ranks; every rank calls the same methods."""

    device: torch.device
    mesh: DeviceMesh
    """The data-parallel dimension of the ranks' mesh."""

    @classmethod
    def on_ranks(cls, device: torch.device, dims: ParallelDims) -> Fsdp2Parallelizer:
        """`device` is this rank's own."""
        return cls(device, dims.build_mesh(device.type)["dp"])

    def load_policy(self, section: ModelConfig) -> LoadedModel:
        policy = _precision(section)
        try:
            base, weights = build_on_meta(section)
        except MetaLoadingUnsupported as reason:
            model = with_adapter(load_model(section, device=_CPU), section)
            return LoadedModel(model, model, self._shard(model, model, policy), note=_whole_note(reason))
        _enable_gradient_checkpointing(base, section)
        model = _with_adapter_on_meta(base, section)
        call = self._shard(model, model, policy)
        self._read_shards(base, weights)
        call(_check_and_enable_packing)
        return LoadedModel(model, model, call)

    def load_reference(self, section: ModelConfig) -> ModelCall:
        # Its root is not resharded: the head is used in the forward pass of another model.
        shard = partial(self._shard, policy=MixedPrecisionPolicy(), reshard=False)
        try:
            base, weights = build_on_meta(section, trainable=False)
        except MetaLoadingUnsupported:
            model = load_model(section, device=_CPU, trainable=False)
            return shard(model, model)
        call = shard(base, base)
        self._read_shards(base, weights)
        call(_check_and_enable_packing)
        return call

    def load_critic(self, section: ModelConfig, head: HeadInit) -> LoadedModel:
        policy = _precision(section)
        try:
            base, weights = build_on_meta(section, headless=True)
        except MetaLoadingUnsupported as reason:
            model = load_value_model(section, head=head, device=_CPU)
            call = self._shard(model, model.decoder, policy)
            return LoadedModel(model, model.decoder, call, note=_whole_note(reason))
        _enable_gradient_checkpointing(base, section)
        decoder = _with_adapter_on_meta(base, section)
        model = ValueModel(decoder, base.config, head, getattr(torch, section.dtype), _CPU)
        call = self._shard(model, model.decoder, policy)
        self._read_shards(base, weights)
        call(_enable_decoder_packing)
        return LoadedModel(model, model.decoder, call)

    def _shard(
        self, model: nn.Module, decoder: nn.Module, policy: MixedPrecisionPolicy, *, reshard: bool = True
    ) -> ModelCall:
        base = base_model(decoder)
        names = set(base._no_split_modules or ())
        for module in reversed(list(base.modules())):  # inner modules first: some families name nested ones
            if type(module).__name__ in names:
                fully_shard(module, mesh=self.mesh, mp_policy=policy)
        root = _FsdpRoot(model)
        # Inputs stay as they are: advantages and log-probs of a micro-batch are float32.
        outermost = replace(policy, cast_forward_inputs=False)
        fully_shard(root, mesh=self.mesh, mp_policy=outermost, reshard_after_forward=reshard)
        for module in root.modules():
            if isinstance(module, FSDPModule):
                # A loss is divided by a count over all ranks, so gradients are added and not averaged.
                module.set_force_sum_reduction_for_comms(True)
                module.set_gradient_divide_factor(1.0)
        return root

    def _read_shards(self, base: PreTrainedModel, weights: WeightFiles) -> None:
        """Replace each parameter on the meta device by this rank's rows of it."""
        read: dict[int, nn.Parameter] = {}
        for name, parameter in list(base.named_parameters(remove_duplicate=False)):
            if not parameter.is_meta:
                continue
            if id(parameter) not in read:
                assert isinstance(parameter, DTensor)
                rows = partial(_rows, weights, plain_name(name), parameter.dtype)
                shard = distribute_like(rows, parameter, self.device)
                read[id(parameter)] = nn.Parameter(shard, requires_grad=parameter.requires_grad)
            owner, _, attribute = name.rpartition(".")
            setattr(base.get_submodule(owner), attribute, read[id(parameter)])


class _FsdpRoot(nn.Module):
    """Module around which FSDP gathers parameters; any function of the model can be called inside."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        return function(self.model, *args, **kwargs)


def _rows(weights: WeightFiles, name: str, dtype: torch.dtype, first: int, end: int) -> Tensor:
    return weights.read_rows(name, first, end).to(dtype)


def _precision(section: ModelConfig) -> MixedPrecisionPolicy:
    if section.compute_dtype in (None, section.dtype):
        return MixedPrecisionPolicy()
    return MixedPrecisionPolicy(getattr(torch, section.compute_dtype), torch.float32)


def _whole_note(reason: Exception) -> str:
    return f"every rank read the whole model, since {reason}"


def _enable_gradient_checkpointing(base: PreTrainedModel, section: ModelConfig) -> None:
    if section.gradient_checkpointing:
        base.gradient_checkpointing_enable({"use_reentrant": False})


def _check_and_enable_packing(model: nn.Module) -> None:
    check_logits(model)
    enable_packed_attention(base_model(model))


def _enable_decoder_packing(model: ValueModel) -> None:
    enable_packed_attention(base_model(model.decoder))


def _with_adapter_on_meta(base: PreTrainedModel, section: ModelConfig) -> nn.Module:
    """The model with a new adapter whose weights are on the CPU; the model's own stay on the meta device.

    PEFT moves an adapter to the device of the layer that it adapts, so the layers' weights are replaced by
    tensors on the CPU without memory of their own while the adapter is added.
    """
    if section.lora is None:
        return base
    placeholders: dict[int, nn.Parameter] = {}
    originals: dict[int, nn.Parameter] = {}
    for module in base.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and parameter.is_meta:
                if id(parameter) not in placeholders:
                    empty = torch.empty((), dtype=parameter.dtype).expand(parameter.shape)
                    placeholder = nn.Parameter(empty, requires_grad=False)
                    placeholders[id(parameter)], originals[id(placeholder)] = placeholder, parameter
                module._parameters[name] = placeholders[id(parameter)]
    adapted = with_adapter(base, section)
    for module in adapted.modules():
        for name, parameter in module._parameters.items():
            if id(parameter) in originals:
                module._parameters[name] = originals[id(parameter)]
    return adapted
