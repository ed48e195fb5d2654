"""Sharded models on several ranks, with PyTorch's FSDP2 (`fully_shard`).

FSDP2 gathers a module's parameters for the duration of its forward and backward pass, and gives each rank
the sum over ranks of its shard of the gradient. Models are built on the meta device, and each rank reads its
own part of the weights; a model for which that is not possible is read whole by every rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import torch
import torch.export
from torch import Tensor, nn
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from strop.config.schema.model import ModelConfig
from strop.config.schema.policy_gradient import HeadInit
from strop.config.schema.trainer import Fsdp2EngineConfig, WrapPolicyConfig
from strop.errors import ModelError
from strop.models.compiled_layers import compile_layers
from strop.models.dtensor import Block, distribute_like
from strop.models.loading import enable_gradient_checkpointing, load_model, load_trained
from strop.models.logprobs import check_logits
from strop.models.meta_loading import MetaLoadingUnsupported, WeightFiles, build_on_meta
from strop.models.packed_attention.forward import base_model, enable_packed_attention, split_sequences
from strop.models.packed_attention.model_ranks import SequenceGroup
from strop.models.shared_weights import plain_name
from strop.models.value_model import ValueModel, load_value_model
from strop.training.parallel.mesh import RankMeshes
from strop.training.parallel.parallelize import LoadedModel, ModelCall, with_adapter
from strop.training.parallel.tensor import divide_matrices
from strop.types import TokenOutputs

T = TypeVar("T")

torch.export.register_dataclass(TokenOutputs)  # so that FSDP's hooks find the tensors in it

_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Fsdp2Parallelizer:
    """Loads models in equal shards on all ranks of a replica; every rank calls the same methods."""

    device: torch.device
    meshes: RankMeshes
    engine: Fsdp2EngineConfig

    @property
    def sequence_group(self) -> SequenceGroup | None:
        """Ranks that divide the tokens of each micro-batch."""
        return self.meshes.sequence

    def load_policy(self, section: ModelConfig, head: HeadInit | None = None) -> LoadedModel:
        try:
            base, weights = build_on_meta(section, classifier=head)
        except MetaLoadingUnsupported as reason:
            model = with_adapter(load_trained(section, head, device=_CPU), section)
            root = self._shard_trained(model, model, section)
            return self._trained(model, model, root, section, _whole_note(reason))
        enable_gradient_checkpointing(base, section)
        model = _with_adapter_on_meta(base, section)
        root = self._shard_trained(model, model, section)
        self._read_shards(base, weights, offload=self.engine.cpu_offload)
        with torch.no_grad():
            root(_check_and_enable_packing if head is None else _enable_packing)
        return self._trained(model, model, root, section)

    def load_reference(self, section: ModelConfig) -> ModelCall:
        offload = self.engine.reference_cpu_offload
        # Its root is not resharded: the head is used in the forward pass of another model.
        shard = partial(
            self._shard, policy=MixedPrecisionPolicy(), offload=offload, reshard=True, reshard_root=False
        )
        try:
            base, weights = build_on_meta(section, trainable=False)
        except MetaLoadingUnsupported:
            base = load_model(section, device=_CPU, trainable=False)
            root = shard(base, base)
        else:
            root = shard(base, base)
            self._read_shards(base, weights, offload=offload)
            root(_check_and_enable_packing)
        self._split_sequences(base)
        return root

    def load_critic(self, section: ModelConfig, head: HeadInit) -> LoadedModel:
        try:
            base, weights = build_on_meta(section, headless=True)
        except MetaLoadingUnsupported as reason:
            model = load_value_model(section, head=head, device=_CPU)
            root = self._shard_trained(model, model.decoder, section)
            return self._trained(model, model.decoder, root, section, _whole_note(reason))
        enable_gradient_checkpointing(base, section)
        decoder = _with_adapter_on_meta(base, section)
        model = ValueModel(decoder, base.config, head, section, _CPU)
        root = self._shard_trained(model, model.decoder, section)
        self._read_shards(base, weights, offload=self.engine.cpu_offload)
        with torch.no_grad():
            root(_enable_decoder_packing)
        return self._trained(model, model.decoder, root, section)

    def _trained(
        self, model: nn.Module, decoder: nn.Module, root: _FsdpRoot, section: ModelConfig, note: str = ""
    ) -> LoadedModel:
        self._split_sequences(decoder)
        compile_layers(decoder, section)
        sync = partial(_set_gradient_sync, root, self.engine)
        return LoadedModel(model, decoder, root, note=note, before_backward=sync)

    def _split_sequences(self, decoder: nn.Module) -> None:
        if self.sequence_group is not None:
            split_sequences(decoder, self.sequence_group)

    def _shard_trained(self, model: nn.Module, decoder: nn.Module, section: ModelConfig) -> _FsdpRoot:
        policy = MixedPrecisionPolicy()
        if section.compute_dtype not in (None, section.dtype):
            dtypes = (section.compute_dtype, self.engine.reduce_dtype)
            policy = MixedPrecisionPolicy(*(getattr(torch, str(dtype)) for dtype in dtypes))
        reshard = self.engine.reshard_after_forward
        return self._shard(
            model, decoder, policy, offload=self.engine.cpu_offload, reshard=reshard, reshard_root=reshard
        )

    def _shard(
        self,
        model: nn.Module,
        decoder: nn.Module,
        policy: MixedPrecisionPolicy,
        *,
        offload: bool,
        reshard: bool,
        reshard_root: bool,
    ) -> _FsdpRoot:
        """Shard the modules that the wrap policy names, and what is around them."""
        pinned = self.device.type == "cuda"
        mesh = self.meshes.parameters
        if mesh["tp"].size() > 1:
            divide_matrices(model, decoder, mesh["tp"])
        shard = partial(
            fully_shard,
            mesh=mesh["replicate", "shard"] if mesh["replicate"].size() > 1 else mesh["shard"],
            offload_policy=CPUOffloadPolicy(pin_memory=pinned) if offload else OffloadPolicy(),
        )
        wrapped = find_wrapped_modules(base_model(decoder), self.engine.wrap)
        for module in reversed(wrapped):  # inner modules first: some families name nested ones
            shard(module, mp_policy=policy, reshard_after_forward=reshard)
        root = _FsdpRoot(model, keeps_parameters=not reshard)
        # Inputs stay as they are: advantages and log-probs of a micro-batch are float32.
        outermost = replace(policy, cast_forward_inputs=False)
        shard(root, mp_policy=outermost, reshard_after_forward=reshard_root)
        for module in root.modules():
            if isinstance(module, FSDPModule):
                # A loss is divided by a count over all ranks, so gradients are added and not averaged.
                module.set_force_sum_reduction_for_comms(True)
                module.set_gradient_divide_factor(1.0)
        _set_prefetch(wrapped, self.engine)
        return root

    def _read_shards(self, base: PreTrainedModel, weights: WeightFiles, *, offload: bool) -> None:
        """Replace each parameter on the meta device by this rank's part of it."""
        device = _CPU if offload else self.device
        read: dict[int, nn.Parameter] = {}
        for name, parameter in list(base.named_parameters(remove_duplicate=False)):
            if not parameter.is_meta:
                continue
            if id(parameter) not in read:
                assert isinstance(parameter, DTensor)
                part = partial(_read_block, weights, plain_name(name), parameter.dtype)
                shard = distribute_like(part, parameter, device)
                read[id(parameter)] = nn.Parameter(shard, requires_grad=parameter.requires_grad)
            owner, _, attribute = name.rpartition(".")
            setattr(base.get_submodule(owner), attribute, read[id(parameter)])


class _FsdpRoot(nn.Module):
    """Module around which FSDP gathers parameters; any function of the model can be called inside."""

    def __init__(self, model: nn.Module, *, keeps_parameters: bool) -> None:
        """`keeps_parameters` is whether gathered parameters are kept for a backward pass."""
        super().__init__()
        self.model = model
        self._keeps_parameters = keeps_parameters

    def __call__(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        result: T = super().__call__(function, *args, **kwargs)
        if self._keeps_parameters and not torch.is_grad_enabled():  # no backward pass frees them
            for module in self.modules():
                if isinstance(module, FSDPModule):
                    module.reshard()
        return result

    def forward(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        return function(self.model, *args, **kwargs)


def _read_block(weights: WeightFiles, name: str, dtype: torch.dtype, block: Block) -> Tensor:
    return weights.read_block(name, block).to(dtype)


def find_wrapped_modules(base: PreTrainedModel, section: WrapPolicyConfig) -> list[nn.Module]:
    """Modules whose parameters are gathered together, in the model's order. Raises ModelError if none has a class that
    the section names."""
    names = set(section.layers or base._no_split_modules or ())
    named = [module for module in base.modules() if type(module).__name__ in names]
    if section.layers and not named:
        layers = ", ".join(base._no_split_modules or ()) or "unknown"
        raise ModelError(
            f"trainer.engine.wrap.layers: {type(base).__name__} has no module of the classes "
            f"{', '.join(section.layers)}. Its decoder layers are {layers}; remove the key to use them."
        )
    return [
        module for module in named if sum(p.numel() for p in module.parameters()) >= section.min_parameters
    ]


def _set_prefetch(wrapped: Sequence[nn.Module], engine: Fsdp2EngineConfig) -> None:
    modules: list[FSDPModule] = [module for module in wrapped if isinstance(module, FSDPModule)]
    forward, backward = engine.forward_prefetch, engine.backward_prefetch
    for i, module in enumerate(modules):
        module.set_modules_to_forward_prefetch(modules[i + 1 : i + 1 + forward])
        if backward > 1:
            module.set_modules_to_backward_prefetch(modules[max(i - backward, 0) : i][::-1])


def _set_gradient_sync(root: nn.Module, engine: Fsdp2EngineConfig, is_last: bool) -> None:
    """Choose what the next backward pass sums gradients over: the ranks of a replica if due, replicas if it is the
    last one."""
    assert isinstance(root, FSDPModule)
    root.set_requires_gradient_sync(is_last or engine.gradient_sync == "each_microbatch")
    root.set_requires_all_reduce(is_last)


def _whole_note(reason: Exception) -> str:
    return f"every rank read the whole model, since {reason}"


def _check_and_enable_packing(model: nn.Module) -> None:
    check_logits(model)
    enable_packed_attention(base_model(model))


def _enable_packing(model: nn.Module) -> None:
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
