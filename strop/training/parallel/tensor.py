"""Tensor parallelism: each rank of a group holds a part of the matrices that a model's plan in transformers divides.

Projections into heads and of the MLP are divided by columns, those back by rows, as the plan says (`base_model_tp_plan`
of a model's configuration); embeddings and the language-model head by tokens of the vocabulary. All other parameters,
such as those of norms, are equal on all ranks. FSDP2 shards the parts over the remaining ranks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from peft.tuners.lora import Linear as LoraLinear
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)
from transformers import PreTrainedModel

from strop.errors import ModelError
from strop.models.packed_attention.forward import base_model
from strop.models.packed_attention.model_ranks import TensorGroup

_KEY = "trainer.engine.tensor_parallel"
_REPLICATED_SUM = "replicated_with_grad_allreduce"
_STYLES: Mapping[str, Callable[[], ParallelStyle]] = {
    "colwise": ColwiseParallel,
    "rowwise": RowwiseParallel,
    "colwise_gather_output": partial(ColwiseParallel, output_layouts=Replicate()),
    "rowwise_split_input": partial(RowwiseParallel, input_layouts=Replicate()),
}
"""torch's style of linear layers for each style of the plans."""
_INPUTS_DIVIDED = ("rowwise", "rowwise_split_input")


def divide_matrices(model: nn.Module, decoder: nn.Module, mesh: DeviceMesh) -> None:
    """Replace all parameters by this rank's parts on a mesh of one dimension; `decoder` is the Hugging Face model in
    `model`, with its adapter.

    Raises ModelError for a model without a plan or with one that Strop does not support, and for sizes that the ranks
    do not divide.
    """
    base = base_model(decoder)
    trained = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    embedding, head = base.get_input_embeddings(), base.get_output_embeddings()  # type: ignore[no-untyped-call]
    styles = {
        module: style for module, style in _planned_modules(base).items() if module not in (embedding, head)
    }
    _require_supported(base, set(styles.values()))
    _require_heads(base, mesh.size())
    is_tied = head is not None and head.weight is embedding.weight
    if isinstance(head, BaseTunerLayer) or isinstance(embedding, BaseTunerLayer):
        raise ModelError(
            f"{_KEY} is {mesh.size()}, and an adapter of the embeddings or of the language-model head cannot be "
            "divided. Add them to model.lora.exclude, or write tensor_parallel: 1."
        )
    _divide_vocabulary(embedding, head, mesh)
    for module, style in styles.items():
        _divide(module, style, mesh)
    for module in model.modules():
        is_partial = module is head or styles.get(module) == _REPLICATED_SUM
        _replicate_rest(module, mesh, is_gradient_partial=is_partial)
    if is_tied:
        head.weight = embedding.weight
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(trained[name])
    TensorGroup.of(mesh.get_group()).set_on(base)


def _planned_modules(base: PreTrainedModel) -> dict[nn.Module, str]:
    """The modules that the model's plan names, with their styles."""
    plan = {re.compile(re.escape(name).replace(r"\*", r"\d+")): style for name, style in base.tp_plan.items()}
    found: dict[nn.Module, str] = {}
    for name, module in base.named_modules():
        for pattern, style in plan.items():
            if pattern.fullmatch(name):
                found[module] = style
    return found


def _require_supported(base: PreTrainedModel, styles: set[str]) -> None:
    """Raise ModelError unless Strop supports all styles of the plan of a model's layers."""
    unsupported = sorted(styles - {*_STYLES, _REPLICATED_SUM})
    if unsupported:
        reason = (
            f"its plan in transformers has the styles {', '.join(unsupported)}, which Strop does not support"
        )
    elif not styles.intersection(_INPUTS_DIVIDED):
        reason = "transformers has no tensor-parallel plan for it"
    else:
        return
    raise ModelError(
        f"{_KEY}: the matrices of {type(base).__name__} cannot be divided: {reason}. Write tensor_parallel: 1 (in a "
        "file of verl tensor_model_parallel_size: 1), with which FSDP2 shards every parameter over all ranks."
    )


def _require_heads(base: PreTrainedModel, size: int) -> None:
    config = base.config.get_text_config()
    heads = {
        "attention heads": config.num_attention_heads,
        "key-value heads": getattr(config, "num_key_value_heads", None) or config.num_attention_heads,
    }
    for name, count in heads.items():
        if count % size:
            raise ModelError(
                f"{_KEY} is {size}, which does not divide the {count} {name} of {type(base).__name__}. Write a "
                f"divisor of {count}."
            )


def _divide_vocabulary(embedding: nn.Module, head: nn.Module | None, mesh: DeviceMesh) -> None:
    """Divide embeddings and head by tokens; a vocabulary that the ranks do not divide stays whole."""
    if isinstance(embedding, nn.Embedding) and embedding.num_embeddings % mesh.size() == 0:
        _apply(embedding, RowwiseParallel(input_layouts=Replicate()), mesh)
    if type(head) is nn.Linear and head.out_features % mesh.size() == 0:
        _apply(head, _STYLES["colwise_gather_output"](), mesh)


def _divide(module: nn.Module, style: str, mesh: DeviceMesh) -> None:
    """Divide a linear layer and its adapters; A of an adapter is divided where the layer's input is, B where its
    output is."""
    if style == _REPLICATED_SUM:
        return
    for linear, parallel in _linear_layers(module, style):
        size = linear.in_features if isinstance(parallel, RowwiseParallel) else linear.out_features
        if size % mesh.size():
            raise ModelError(
                f"{_KEY} is {mesh.size()}, which does not divide a matrix of {size} columns or rows of the model. "
                "Write a divisor of it."
            )
        _apply(linear, parallel, mesh)


def _linear_layers(module: nn.Module, style: str) -> Iterator[tuple[nn.Linear, ParallelStyle]]:
    parallel = _STYLES[style]
    if isinstance(module, LoraLinear):
        layers = module.lora_A if style in _INPUTS_DIVIDED else module.lora_B
        for each in (module.get_base_layer(), *layers.values()):
            assert isinstance(each, nn.Linear)
            yield each, parallel()
    elif isinstance(module, nn.Linear):
        yield module, parallel()
    else:
        raise ModelError(
            f"{_KEY}: the plan of the model divides a {type(module).__name__}, which is not linear."
        )


def _apply(module: nn.Module, style: ParallelStyle, mesh: DeviceMesh) -> None:
    parallelize_module(module, mesh, style, src_data_rank=None)


def _replicate_rest(module: nn.Module, mesh: DeviceMesh, *, is_gradient_partial: bool) -> None:
    """Make the module's own whole parameters equal on all ranks; its forward pass sees plain tensors."""
    names = [name for name, p in module.named_parameters(recurse=False) if not isinstance(p, DTensor)]
    for name in names:
        replicated = distribute_tensor(module.get_parameter(name), mesh, [Replicate()], src_data_rank=None)
        module.register_parameter(name, nn.Parameter(replicated))
    if not names:
        return
    gradient = [Partial()] if is_gradient_partial else None

    def show_plain(module: nn.Module, _: Any) -> None:
        for name in names:
            parameter: Any = module._parameters[name]
            module.__dict__[name] = parameter.to_local(grad_placements=gradient)

    def hide_plain(module: nn.Module, _: Any, output: Tensor) -> None:
        for name in names:
            module.__dict__.pop(name, None)

    module.register_forward_pre_hook(show_plain)
    module.register_forward_hook(hide_plain, always_call=True)
