"""Construction of optimizers from the run file's section, each from the library that maintains it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set
from typing import Any, Protocol, assert_never

import torch
from torch import nn

from strop.config.schema.optimizer import (
    AdafactorConfig,
    AdagradConfig,
    AdalomoConfig,
    AdamWConfig,
    AdemamixConfig,
    BitsAndBytesAdamWConfig,
    GaloreAdamWConfig,
    GrokAdamWConfig,
    LomoConfig,
    OptimizerConfig,
    RmspropConfig,
    ScheduleFreeSgdConfig,
    SgdConfig,
)
from strop.errors import MissingExtraError, PlacementError
from strop.training.optimizers.grokadamw import GrokAdamW as GrokAdamWOptimizer

_IN_A_LAYER = re.compile(r"\.\d+\.")
"""Pattern of a parameter's name in one of a model's numbered layers."""
_UNDECAYED_NAME = re.compile(r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)")
"""Pattern of a name, in lower case, that transformers' trainer leaves out of the weight decay."""
UNDECAYED = "undecayed"
"""Key of a parameter group without weight decay."""


class ScheduleFreeOptimizer(Protocol):
    """An optimizer with two sets of weights: those at which gradients are computed, and their average."""

    param_groups: list[dict[str, Any]]
    """Parameter groups; `train_mode` says which of the two sets the parameters hold."""

    def train(self) -> None:
        """Write the weights for gradients into the parameters."""
        ...

    def eval(self) -> None:
        """Write the average into the parameters."""
        ...


def build_optimizer(
    section: OptimizerConfig, parameters: Mapping[str, nn.Parameter], undecayed: Set[str] = frozenset()
) -> torch.optim.Optimizer:
    """The optimizer over `parameters`; weight decay applies to all of them but the `undecayed`.

    Raises MissingExtraError where its library is not installed.
    """
    params = _decay_groups(list(parameters.items()), undecayed)
    common: dict[str, Any] = {"lr": section.lr, "weight_decay": section.weight_decay}
    match section:
        case AdamWConfig() | SgdConfig() | AdagradConfig() | RmspropConfig() | LomoConfig():
            return _of_torch(section, params, common)
        case BitsAndBytesAdamWConfig():
            return _of_bitsandbytes(section, params, common)
        case AdafactorConfig() | AdalomoConfig():
            return _of_transformers(section, params, common)
        case GrokAdamWConfig():
            return GrokAdamWOptimizer(
                params,
                **common,
                betas=section.betas,
                eps=section.eps,
                alpha=section.alpha,
                lamb=section.lamb,
                gamma=section.gamma,
                max_tensor_norm=section.max_tensor_norm,
            )
        case AdemamixConfig() | GaloreAdamWConfig() | ScheduleFreeSgdConfig():
            return _of_pytorch_optimizer(section, parameters, undecayed, common)
        case _:
            assert_never(section)


def _of_torch(
    section: AdamWConfig | SgdConfig | AdagradConfig | RmspropConfig | LomoConfig,
    params: Sequence[dict[str, Any]],
    common: dict[str, Any],
) -> torch.optim.Optimizer:
    match section:
        case AdamWConfig():
            return torch.optim.AdamW(
                params, **common, betas=section.betas, eps=section.eps, fused=section.fused
            )
        case SgdConfig():
            return torch.optim.SGD(
                params,
                **common,
                momentum=section.momentum,
                dampening=section.dampening,
                nesterov=section.nesterov,
            )
        case AdagradConfig():
            return torch.optim.Adagrad(
                params,
                **common,
                lr_decay=section.lr_decay,
                initial_accumulator_value=section.initial_accumulator,
                eps=section.eps,
            )
        case RmspropConfig():
            return torch.optim.RMSprop(
                params,
                **common,
                alpha=section.alpha,
                momentum=section.momentum,
                centered=section.centered,
                eps=section.eps,
            )
        case LomoConfig():
            return torch.optim.SGD(params, **common)


def _of_bitsandbytes(
    section: BitsAndBytesAdamWConfig, params: Sequence[dict[str, Any]], common: dict[str, Any]
) -> torch.optim.Optimizer:
    if section.paged and any(p.device.type != "cuda" for group in params for p in group["params"]):
        raise PlacementError(
            "optimizer.paged is true, and paged memory is a GPU's, but the trained parameters are on the CPU. Write "
            "paged: false."
        )
    try:
        import bitsandbytes
    except ImportError as error:
        raise MissingExtraError(
            f"The optimizer {section.type} needs the package bitsandbytes, which cannot be imported ({error}): "
            "pip install 'strop[bitsandbytes]'"
        ) from error
    kind = f"{'Paged' if section.paged else ''}AdamW{section.bits}bit"
    return getattr(bitsandbytes.optim, kind)(params, **common, betas=section.betas, eps=section.eps)


def _of_transformers(
    section: AdafactorConfig | AdalomoConfig, params: Sequence[dict[str, Any]], common: dict[str, Any]
) -> torch.optim.Optimizer:
    from transformers import Adafactor as AdafactorOptimizer

    return AdafactorOptimizer(  # type: ignore[no-untyped-call]
        params,
        **common,
        eps=section.eps,
        clip_threshold=section.clip_threshold,
        decay_rate=section.decay_rate,
        beta1=None if isinstance(section, AdalomoConfig) else section.beta1,
        scale_parameter=isinstance(section, AdalomoConfig) or section.scale_parameter,
        relative_step=False,
    )


def _of_pytorch_optimizer(
    section: AdemamixConfig | GaloreAdamWConfig | ScheduleFreeSgdConfig,
    parameters: Mapping[str, nn.Parameter],
    undecayed: Set[str],
    common: dict[str, Any],
) -> torch.optim.Optimizer:
    params = _decay_groups(list(parameters.items()), undecayed)
    try:
        import pytorch_optimizer as library
    except ImportError as error:
        raise MissingExtraError(
            f"The optimizer {section.type} needs the package pytorch_optimizer, which is not "
            "installed: pip install 'strop[optimizers]'"
        ) from error
    match section:
        case AdemamixConfig():
            return library.AdEMAMix(
                params,
                **common,
                betas=section.betas,
                alpha=section.alpha,
                t_alpha_beta3=section.ramp_updates,
                eps=section.eps,
                weight_decouple=True,
            )
        case GaloreAdamWConfig():
            return library.GaLore(
                _galore_groups(section, parameters, undecayed), **common, betas=section.betas, eps=section.eps
            )
        case ScheduleFreeSgdConfig():
            return library.ScheduleFreeSGD(
                params,
                **common,
                momentum=section.momentum,
                r=section.r,
                weight_lr_power=section.weight_lr_power,
            )


def _galore_groups(
    section: GaloreAdamWConfig, parameters: Mapping[str, nn.Parameter], undecayed: Set[str]
) -> list[dict[str, Any]]:
    """Parameter groups of GaLore: the layers' matrices, which are projected, and all other parameters."""
    settings = {
        "rank": section.rank,
        "update_proj_gap": section.update_every,
        "scale": section.scale,
        "projection_type": section.projection,
    }
    matrices: list[tuple[str, nn.Parameter]] = []
    rest: list[tuple[str, nn.Parameter]] = []
    for name, parameter in parameters.items():
        is_projected = parameter.dim() == 2 and _IN_A_LAYER.search(name)
        (matrices if is_projected else rest).append((name, parameter))
    groups = [group | settings for group in _decay_groups(matrices, undecayed)]
    return [*groups, *_decay_groups(rest, undecayed)]


def _decay_groups(
    parameters: Sequence[tuple[str, nn.Parameter]], undecayed: Set[str]
) -> list[dict[str, Any]]:
    """Parameter groups with and without weight decay, as far as they have parameters."""
    decayed = [parameter for name, parameter in parameters if name not in undecayed]
    others = [parameter for name, parameter in parameters if name in undecayed]
    groups: list[dict[str, Any]] = [{"params": decayed}] if decayed else []
    return [*groups, {"params": others, "weight_decay": 0.0, UNDECAYED: True}] if others else groups


def undecayed_parameters(model: nn.Module) -> frozenset[str]:
    """Names of the parameters that transformers' trainer leaves out of the weight decay.

    `Trainer.get_decay_parameter_names` of transformers 5: those of LayerNorm modules, and biases and norms by name.
    """
    norms = {name for name, module in model.named_modules() if isinstance(module, nn.LayerNorm)}
    return frozenset(
        name
        for name, _ in model.named_parameters()
        if _UNDECAYED_NAME.search(name.lower()) or name.rpartition(".")[0] in norms
    )
