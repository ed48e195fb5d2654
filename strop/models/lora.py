"""Low-rank adapters (arXiv 2106.09685) with PEFT: creation, and merging while weights are read.

An adapted weight is W + (alpha / rank) B A. Mixtures of experts keep the weights of all experts in one tensor
[experts, out, in], and PEFT adapts each expert's matrix; its `all-linear` includes them and the router. The model
with its adapter disabled is the reference (`without_adapter`), so that no second model is needed.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, cast

import torch
from peft import LoraConfig as PeftLoraConfig
from peft import PeftModel, get_peft_model, load_peft_weights, set_peft_model_state_dict
from peft.tuners.lora import Linear, ParamWrapper
from torch import Tensor, nn
from transformers import PreTrainedModel

from strop.config.schema.model import LoraConfig
from strop.errors import ModelError
from strop.models.dtensor import full_tensor
from strop.models.fused_layers import fuse_layers
from strop.models.packed_attention.forward import base_model
from strop.models.shared_weights import plain_name
from strop.models.vision.embedding import takes_images, vision_modules
from strop.protocols import LowRankUpdate

ADAPTER = "default"
"""PEFT's name for the one adapter."""
_FUSED_OUT_PROJ = ("mamba", "mamba2", "falcon_mamba", "falcon_h1", "nemotron_h")
"""Values of `model_type` whose kernels use the weight of `out_proj` themselves; PEFT refuses to adapt it."""


def add_lora(model: PreTrainedModel, section: LoraConfig, dtype: torch.dtype) -> PeftModel:
    """Wrap the model with a new adapter whose parameters have `dtype`; all other parameters are frozen.

    A is random (by torch's generator) and B is zero, so the outputs are initially unchanged. Raises
    `ModelError` if `targets` matches no layer that can be adapted.
    """
    headless = model.get_output_embeddings() is None  # type: ignore[no-untyped-call]
    config = PeftLoraConfig(
        r=section.rank,
        lora_alpha=section.alpha,  # type: ignore[arg-type]  # PEFT accepts a float
        target_modules=_names(section.targets),
        exclude_modules=_exclusions(model, section),
        lora_dropout=section.dropout,
        task_type="FEATURE_EXTRACTION" if headless else "CAUSAL_LM",
    )
    try:
        with warnings.catch_warnings():
            # verl's `.*visual.*` is used for all models, and matches nothing in those without images.
            warnings.filterwarnings("ignore", message="You have passed exclude_modules")
            # PEFT sets these patterns itself, for experts, and compares them with the names of modules only.
            warnings.filterwarnings(
                "ignore", message=r"The following (rank|alpha)_pattern keys did not match"
            )
            wrapped = get_peft_model(model, config, autocast_adapter_dtype=False)
    except ValueError as error:
        if section.dropout and "lora_dropout" in str(error):
            raise ModelError(
                f"model.lora.dropout ({section.dropout}) must be 0 for this model: the weights of its experts are one "
                "tensor, which PEFT adapts only without dropout."
            ) from error
        raise ModelError(f"model.lora.targets: {error}") from error
    _check_targets(wrapped)
    fuse_layers(wrapped)
    for parameter in wrapped.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(dtype)
    return wrapped


def load_adapter(model: PeftModel, section: LoraConfig, folder: str) -> None:
    """Set the adapter's weights to those of a PEFT folder. Raises `ModelError` if they do not fit the section."""
    try:
        saved = PeftLoraConfig.from_pretrained(folder)
        weights = load_peft_weights(folder, device="cpu")
    except (OSError, ValueError) as error:
        raise ModelError(f"model.lora.adapter: {folder} has no adapter in PEFT's format: {error}") from error
    expected, own = (saved.r, saved.lora_alpha), (section.rank, section.alpha)
    if expected != own:
        raise ModelError(
            f"model.lora.adapter: the adapter in {folder} has rank {expected[0]} and alpha {expected[1]}; write "
            "them as model.lora.rank and model.lora.alpha."
        )
    result: Any = set_peft_model_state_dict(model, weights)
    lacking = [name for name in result.missing_keys if ".lora_" in name]
    if lacking or result.unexpected_keys:
        name = next(iter([*lacking, *result.unexpected_keys]))
        raise ModelError(
            f"model.lora.adapter: the adapter in {folder} is one of other modules than model.lora.targets names; they "
            f"differ in {name}."
        )


def without_adapter(model: PeftModel) -> AbstractContextManager[None]:
    """Disable the adapter in the block."""
    return model.disable_adapter()


def merged_weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """All weights under Hugging Face's names, the adapter merged into new tensors; the model does not change.

    A tensor with two names (tied embeddings) is yielded once. Without an adapter the tensors are the model's
    own. All ranks of a sharded model must iterate together.
    """
    base = base_model(model)
    adapted = {
        plain_name(f"{name}.{_parameter_name(module)}"): module
        for name, module in base.named_modules()
        if isinstance(module, Linear | ParamWrapper)
    }
    seen: set[int] = set()
    for name, tensor in base.state_dict(keep_vars=True).items():
        if ".lora_" in name or id(tensor) in seen:
            continue
        seen.add(id(tensor))
        weight = full_tensor(tensor)
        plain = plain_name(name)
        if plain in adapted:
            weight = _merged(weight, adapted[plain])
        yield plain, weight


def low_rank_updates(model: nn.Module) -> Mapping[str, LowRankUpdate] | None:
    """The adapter's own tensors by the Hugging Face name of the weight that they adapt.

    None for a model without an adapter, and for one that adapts experts or transposed weights.
    """
    modules = {name: each for name, each in base_model(model).named_modules() if hasattr(each, "lora_A")}
    if not modules or not all(
        isinstance(each, Linear) and not each.fan_in_fan_out for each in modules.values()
    ):
        return None
    return {
        plain_name(f"{name}.weight"): LowRankUpdate(
            cast(Tensor, each.lora_A[ADAPTER].weight).detach(),
            cast(Tensor, each.lora_B[ADAPTER].weight).detach(),
            each.scaling[ADAPTER],
        )
        for name, each in cast(Mapping[str, Linear], modules).items()
    }


def adapter_weights(model: PeftModel) -> Iterator[tuple[str, Tensor]]:
    """Full tensors of the adapter under the names in `model`; all ranks of a sharded model must iterate together."""
    return ((name, full_tensor(p)) for name, p in model.named_parameters() if ".lora_" in name)


@torch.no_grad()
def _merged(weight: Tensor, module: Linear | ParamWrapper) -> Tensor:
    a, b = (
        full_tensor(cast(Tensor, matrix[ADAPTER].weight)).float() for matrix in (module.lora_A, module.lora_B)
    )
    is_transposed = module.fan_in_fan_out
    if isinstance(module, ParamWrapper) and module.num_experts > 1:
        is_transposed = not module._did_swap_in_out_features  # [experts, in, out], as in Llama 4
        a = torch.unflatten(a, 0, (module.num_experts, -1))
        b = torch.unflatten(b, 1, (-1, module.num_experts)).permute(2, 0, 1)
    delta = (b @ a) * module.scaling[ADAPTER]
    if is_transposed:
        delta = delta.transpose(-2, -1)
    return cast(Tensor, weight.float() + delta).to(weight.dtype)


def _parameter_name(module: Linear | ParamWrapper) -> str:
    return module.parameter_name if isinstance(module, ParamWrapper) else "weight"


def _exclusions(model: PreTrainedModel, section: LoraConfig) -> str | list[str] | None:
    """Modules without an adapter: those that the section excludes, or else the vision tower; and of `all-linear`
    those that cannot have one."""
    own = _names(section.exclude)
    if own is None and takes_images(model.config):
        own = _vision_linears(model)
    if section.targets != "all-linear":
        return own
    unfit = [name for name, module in model.named_modules() if _cannot_be_adapted(model, name, module)]
    if isinstance(own, str):
        return "|".join(f"(?:{pattern})" for pattern in [own, *map(re.escape, unfit)])
    return [*(own or ()), *unfit] or None


def _vision_linears(model: PreTrainedModel) -> list[str]:
    names = {module: name for name, module in model.named_modules()}
    parts = [part for module in vision_modules(model) for part in module.modules()]
    return [names[part] for part in parts if isinstance(part, nn.Linear)]


def _cannot_be_adapted(model: PreTrainedModel, name: str, module: nn.Module) -> bool:
    """A linear layer that returns more than its product (Llama 4's router), or whose weight is used without it."""
    if not isinstance(module, nn.Linear):
        return False
    fused = model.config.model_type in _FUSED_OUT_PROJ and name.endswith(".out_proj")
    return fused or type(module).forward is not nn.Linear.forward


def _names(targets: str | tuple[str, ...] | None) -> str | list[str] | None:
    return list(targets) if isinstance(targets, tuple) else targets


def _check_targets(model: PeftModel) -> None:
    base = base_model(model)
    for name, module in base.named_modules():
        if hasattr(module, "lora_A") and not isinstance(module, Linear | ParamWrapper):
            raise ModelError(
                f"model.lora.targets: {name} is not a linear layer, and Strop adapts only those; leave it "
                "out, or add it to model.lora.exclude."
            )
    head = base.get_output_embeddings()  # type: ignore[no-untyped-call]
    if base.config.get_text_config().tie_word_embeddings and isinstance(head, Linear):
        raise ModelError(
            "model.lora.targets: the language-model head shares its weight with the input embeddings in this "
            "model, so an adapter of the head alone cannot be merged. Add it to model.lora.exclude."
        )
