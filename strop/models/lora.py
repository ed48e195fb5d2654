"""Low-rank adapters (arXiv 2106.09685) with PEFT: creation, and merging while weights are read.

An adapted weight is W + s B A with the scale s = alpha / rank, or alpha / sqrt(rank) (arXiv 2312.03732). Mixtures of
experts keep the weights of all experts in one tensor [experts, out, in], and PEFT adapts each expert's matrix; its
`all-linear` includes them and the router. The model with its adapter disabled is the reference (`without_adapter`),
so that no second model is needed.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from peft import LoraConfig as PeftLoraConfig
from peft import PeftModel, get_peft_model, load_peft_weights, set_peft_model_state_dict
from peft.tuners.lora import Linear, ParamWrapper
from peft.tuners.tuners_utils import check_target_module_exists
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import PreTrainedModel

from strop.config.peft_adapter import (
    CONFIG_FILE,
    AdapterOptions,
    adapter_folder,
    adapter_options,
    matches,
    read_adapter_options,
)
from strop.config.schema.model import LoraConfig
from strop.errors import ModelError
from strop.models.dtensor import full_tensor
from strop.models.fused_layers import fuse_layers
from strop.models.packed_attention.forward import base_model
from strop.models.quantization import full_precision
from strop.models.shared_weights import plain_name
from strop.models.value_head import SCORE, head_of, is_classifier
from strop.models.vision.embedding import takes_images, vision_modules
from strop.protocols import LowRankUpdate, SharedWeights, UnmergedWeights

ADAPTER = "default"
"""PEFT's name for the one adapter."""
_FUSED_OUT_PROJ = ("mamba", "mamba2", "falcon_mamba", "falcon_h1", "nemotron_h")
"""Values of `model_type` whose kernels use the weight of `out_proj` themselves; PEFT refuses to adapt it."""
_FACTOR = re.compile(r"\.lora_(A|B|embedding_A|embedding_B|magnitude_vector)(\.|$)")
"""Part of the name of an adapter's tensor in PEFT's files."""


def add_lora(model: PreTrainedModel, section: LoraConfig, dtype: torch.dtype) -> PeftModel:
    """Wrap the model with an adapter whose parameters have `dtype`; all others but a classifier's head are frozen.

    Its modules, ranks and scales are those of `section.adapter`, whose weights `load_adapter` sets, or those of the
    section. A is random (by torch's generator) and B is zero, so the outputs are initially unchanged. Raises
    `ModelError` if `targets` matches no layer that can be adapted, for a pattern that matches none of those, and for
    an adapter that does not fit the section.
    """
    options = adapter_options(section)
    key = "model.lora.targets" if section.adapter is None else "model.lora.adapter"
    expected = None if section.adapter is None else _named_modules(model, section, options)
    wrapped = _wrap(model, replace(options, dropout=section.dropout), dtype, key)
    if section.adapter is None:
        _check_patterns(wrapped, options)
    found = {name for name, module in _adapted_modules(wrapped) if isinstance(module, Linear)}
    if expected is not None and expected != found:
        raise ModelError(
            f"model.lora.adapter: the adapter in {section.adapter} is one of other modules than model.lora.targets and "
            f"model.lora.exclude name; they differ in {min(expected ^ found)}."
        )
    return wrapped


def load_adapter(model: PeftModel, section: LoraConfig, path: str) -> None:
    """Set the weights of an adapter that `add_lora` made to those of a PEFT folder.

    Raises `ModelError` if the folder has no adapter, or one with other modules, ranks or scales.
    """
    options = adapter_options(section.model_copy(update={"adapter": path}))
    config = cast(PeftLoraConfig, model.peft_config[ADAPTER])
    for name in ("use_rslora", "alpha_pattern", "rank_pattern"):
        own = getattr(config, name)
        if own != getattr(options, name) and section.adapter is None:
            raise ModelError(
                f"model.lora.adapter: the adapter in {path} has {name} {getattr(options, name)}, and the model's has "
                f"{own}. Write the folder as model.lora.adapter before the model is adapted."
            )
    _load_factors(model, adapter_folder(path))


def _wrap(model: PreTrainedModel, options: AdapterOptions, dtype: torch.dtype, key: str) -> PeftModel:
    headless = model.get_output_embeddings() is None  # type: ignore[no-untyped-call]
    config = PeftLoraConfig(
        r=options.rank,
        lora_alpha=options.alpha,  # type: ignore[arg-type]  # PEFT accepts a float
        use_rslora=options.use_rslora,
        rank_pattern=dict(options.rank_pattern),
        alpha_pattern=dict(options.alpha_pattern),
        target_modules=_names(options.targets),
        exclude_modules=_exclusions(model, options),
        target_parameters=_names(options.target_parameters),
        layers_to_transform=_names(options.layers_to_transform),
        layers_pattern=_names(options.layers_pattern),
        lora_dropout=options.dropout,
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
        if options.dropout and "lora_dropout" in str(error):
            raise ModelError(
                f"model.lora.dropout ({options.dropout}) must be 0 for this model: the weights of its experts are one "
                "tensor, which PEFT adapts only without dropout."
            ) from error
        raise ModelError(f"{key}: {error}") from error
    _check_targets(wrapped, key)
    fuse_layers(wrapped)
    if is_classifier(model):
        head_of(model).requires_grad_(True)
    for parameter in wrapped.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(dtype)
    return wrapped


def _load_factors(model: PeftModel, folder: Path) -> None:
    """Set the adapter's weights to those of a PEFT folder. Raises `ModelError` if they do not fit."""
    try:
        weights = load_peft_weights(str(folder), device="cpu")
    except (OSError, ValueError, SafetensorError) as error:
        raise ModelError(f"model.lora.adapter: {folder} has no adapter in PEFT's format: {error}") from error
    if whole := sorted(name for name in weights if not _FACTOR.search(name)):
        raise ModelError(
            f"model.lora.adapter: the adapter in {folder} holds {len(whole)} tensors besides its factors, such as "
            f"{whole[0]}, and Strop trains only those. Merge it into the model once (merge_and_unload and "
            "save_pretrained of PEFT), write that folder as model.path, and remove model.lora.adapter."
        )
    try:
        result: Any = set_peft_model_state_dict(model, weights)
    except RuntimeError as error:  # of another shape
        reason = " ".join(str(error).partition("\n\t")[2].split("\n")[0].split())
        raise ModelError(
            f"model.lora.adapter: the adapter in {folder} is not one of this model: {reason or error}"
        ) from error
    lacking = [name for name in result.missing_keys if ".lora_" in name]
    if lacking or result.unexpected_keys:
        name = next(iter([*lacking, *result.unexpected_keys]))
        raise ModelError(
            f"model.lora.adapter: the weights in {folder} are not those of the modules in its {CONFIG_FILE}; they "
            f"differ in {name}."
        )


def without_adapter(model: PeftModel) -> AbstractContextManager[None]:
    """Disable the adapter in the block."""
    return model.disable_adapter()


def merged_weights(
    model: nn.Module, *, originals: Mapping[str, Tensor] | None = None, dtype: torch.dtype | None = None
) -> Iterator[tuple[str, Tensor]]:
    """All weights under Hugging Face's names, the adapter merged into new tensors; the model does not change.

    A tensor with two names (tied embeddings) is yielded once. Without an adapter the tensors are the model's
    own. All ranks of a sharded model must iterate together.

    Args:
        originals: weights of the model without its adapter, by the same names, in place of the model's own; on
            the CPU. The other ranks need none.
        dtype: data type of the weights that the adapter changes; each weight's own if omitted.
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
        weight = full_precision(full_tensor(tensor))
        plain = plain_name(name)
        if originals is not None and not tensor.requires_grad:  # a classifier's head is trained itself
            weight = originals[plain]
        if plain in adapted:
            weight = _merged(weight, adapted[plain], dtype or weight.dtype)
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
    """Full tensors of the adapter under the names in `model`, and a classifier's head; all ranks of a sharded model
    must iterate together."""
    head = head_of(base).weight if is_classifier(base := base_model(model)) else None
    return ((name, full_tensor(p)) for name, p in model.named_parameters() if ".lora_" in name or p is head)


@dataclass(frozen=True, slots=True)
class ServingLayout:
    """One rank and one scale for all modules of an adapter."""

    rank: int
    scale: float
    scales: Mapping[str, float]
    """Scale of each module, by its name in PEFT's model."""

    def rearranged(self, factors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """The factors of an adapter with the same products under this rank and scale."""
        for name, factor in factors.items():
            module, _, matrix = name.partition(".lora_")
            is_second = matrix.startswith("B.")
            padding = self.rank - factor.shape[1 if is_second else 0]
            padded = nn.functional.pad(factor, (0, padding) if is_second else (0, 0, 0, padding))
            yield name, padded * (self.scales[module] / self.scale) if is_second else padded


def serving_layout(model: PeftModel) -> ServingLayout | None:
    """Layout of an adapter whose modules differ in rank or scale, or have another scale than alpha / rank; None for
    one that needs none.

    Raises ModelError for such an adapter of experts.
    """
    config = cast(PeftLoraConfig, model.peft_config[ADAPTER])
    modules = {name: each for name, each in model.named_modules() if isinstance(each, Linear | ParamWrapper)}
    linear = {name: each for name, each in modules.items() if isinstance(each, Linear)}
    ranks = {each.r[ADAPTER] for each in linear.values()}
    scales = {name: float(each.scaling[ADAPTER]) for name, each in linear.items()}
    if not config.use_rslora and ranks <= {config.r} and {*scales.values()} <= {config.lora_alpha / config.r}:
        return None
    if len(linear) < len(modules):
        raise ModelError(
            "model.lora: an inference engine cannot apply an adapter of experts with use_rslora, rank_pattern or "
            "alpha_pattern; write rollout.engine.merge_lora: true."
        )
    return ServingLayout(max(ranks), next(iter(scales.values())), scales)


@torch.no_grad()
def _merged(weight: Tensor, module: Linear | ParamWrapper, dtype: torch.dtype) -> Tensor:
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
    return cast(Tensor, weight.to(delta.device, torch.float32) + delta).to(dtype)


def _parameter_name(module: Linear | ParamWrapper) -> str:
    return module.parameter_name if isinstance(module, ParamWrapper) else "weight"


def _exclusions(model: PreTrainedModel, options: AdapterOptions) -> str | list[str] | None:
    """Modules without an adapter: those that the options exclude, or else the vision tower; and of `all-linear`
    those that cannot have one."""
    own = _names(options.exclude)
    if own is None and takes_images(model.config):
        own = _vision_linears(model)
    if options.targets != "all-linear":
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
    """A linear layer that returns more than its product (Llama 4's router), whose weight is used without it, or that is
    a classifier's head, which is trained itself."""
    if not isinstance(module, nn.Linear):
        return False
    fused = model.config.model_type in _FUSED_OUT_PROJ and name.endswith(".out_proj")
    is_head = name == SCORE and is_classifier(model)
    return fused or is_head or type(module).forward is not nn.Linear.forward


def _names(targets: Any) -> Any:
    """A value for PEFT, which has lists where a frozen section has tuples."""
    return list(targets) if isinstance(targets, tuple) else targets


def _adapted_modules(model: PeftModel) -> Iterator[tuple[str, nn.Module]]:
    return ((name, module) for name, module in base_model(model).named_modules() if hasattr(module, "lora_A"))


def _named_modules(model: PreTrainedModel, section: LoraConfig, options: AdapterOptions) -> set[str] | None:
    """Modules of an adapter with these options as far as the section names them; None where it names all of them."""
    if section.targets == "all-linear" and section.exclude is None:
        return None
    selected = options.targets or () if section.targets == "all-linear" else section.targets
    layers = None if isinstance(selected, str) else options.layers_to_transform
    named = replace(options, targets=selected, exclude=section.exclude)
    config = PeftLoraConfig(
        target_modules=_names(selected),
        exclude_modules=_exclusions(model, named),
        layers_to_transform=_names(layers),
        layers_pattern=None if layers is None else _names(options.layers_pattern),
    )
    return {name for name, _ in model.named_modules() if check_target_module_exists(config, name)}


def _check_patterns(model: PeftModel, options: AdapterOptions) -> None:
    """Raise `ModelError` for a pattern of a new adapter that no module has."""
    names = [
        f"{name}.{module.parameter_name}" if isinstance(module, ParamWrapper) else name
        for name, module in _adapted_modules(model)
    ]
    for key in ("rank_pattern", "alpha_pattern"):
        for pattern in getattr(options, key):
            if not any(matches(pattern, name) for name in names):
                raise ModelError(
                    f"model.lora.{key}: {pattern!r} is the end of no adapted module's name, such as {names[0]}. Write "
                    "such a name, or remove the entry."
                )


def _check_targets(model: PeftModel, key: str) -> None:
    base = base_model(model)
    for name, module in _adapted_modules(model):
        if not isinstance(module, Linear | ParamWrapper):
            raise ModelError(
                f"{key}: {name} is not a linear layer, and Strop adapts only those; leave it "
                "out, or add it to model.lora.exclude."
            )
    head = base.get_output_embeddings()  # type: ignore[no-untyped-call]
    if base.config.get_text_config().tie_word_embeddings and isinstance(head, Linear):
        raise ModelError(
            f"{key}: the language-model head shares its weight with the input embeddings in this "
            "model, so an adapter of the head alone cannot be merged. Add it to model.lora.exclude."
        )


_PEFT_FACTOR = re.compile(
    r"^(?:base_model\.model\.)?(?P<module>.+)\.lora_(?P<factor>[AB])(?:\.default)?\.weight$"
)


def with_adapter(weights: SharedWeights, folder: Path, where: str) -> SharedWeights:
    """A model's weights with the adapter of a PEFT folder; the model's own tensors are shared.

    `where` names the adapter in messages. Raises `ModelError` for a folder without an adapter, and for one that is not
    of this model.
    """
    updates = _read_updates(folder, where, weights.device, weights.dtype)
    shapes = {name: tuple(tensor.shape) for name, tensor in weights.tensors()}
    for name, update in updates.items():
        expected = (update.b.shape[0], update.a.shape[1])
        if shapes.get(name) != expected:
            found = shapes.get(name, "none of this name")
            raise ModelError(
                f"{where}: the adapter in {folder} has an update of {name} with the shape {expected}, and the model's "
                f"weight is {found}. Write an adapter that was trained on this model."
            )
    return SharedWeights(
        config=weights.config,
        generation_config=weights.generation_config,
        device=weights.device,
        dtype=weights.dtype,
        tensors=lambda: _with_updates(weights, updates),
        image_processor=weights.image_processor,
        unmerged=UnmergedWeights(weights.tensors, updates),
    )


def _read_updates(
    folder: Path, where: str, device: torch.device, dtype: torch.dtype
) -> Mapping[str, LowRankUpdate]:
    options = read_adapter_options(folder, where)
    try:
        tensors = load_peft_weights(str(folder), device="cpu")
    except (OSError, ValueError, SafetensorError) as error:
        raise ModelError(f"{where}: {folder} has no adapter in PEFT's format: {error}") from error
    factors: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        if (match := _PEFT_FACTOR.match(name)) is None or tensor.ndim != 2:
            raise ModelError(
                f"{where}: the adapter in {folder} has {name}, which is no factor of a linear layer. Merge it into the "
                "model (merge_and_unload and save_pretrained of PEFT), and serve that folder."
            )
        factors.setdefault(match["module"], {})[match["factor"]] = tensor.to(device, dtype)
    if incomplete := sorted(module for module, pair in factors.items() if len(pair) < 2):
        raise ModelError(f"{where}: the adapter in {folder} has one factor only of {incomplete[0]}.")
    return {
        f"{module}.weight": LowRankUpdate(pair["A"], pair["B"], options.scale(module, len(pair["A"])))
        for module, pair in factors.items()
    }


def _with_updates(
    weights: SharedWeights, updates: Mapping[str, LowRankUpdate]
) -> Iterator[tuple[str, torch.Tensor]]:
    for name, tensor in weights.tensors():
        update = updates.get(name)
        yield name, tensor if update is None else tensor + update.scale * (update.b @ update.a)
