"""Optimizers, from the run file's section, each from the library that keeps it best."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, assert_never

import torch
from torch import nn

from strop.config.schema.optimizer import (
    Adafactor,
    Adagrad,
    Adalomo,
    AdamW,
    Ademamix,
    GaloreAdamW,
    GrokAdamW,
    Lomo,
    Optimizer,
    Rmsprop,
    ScheduleFreeSgd,
    Sgd,
)
from strop.errors import MissingExtraError
from strop.training.grokadamw import GrokAdamW as GrokAdamWOptimizer

_IN_A_LAYER = re.compile(r"\.\d+\.")
"""A parameter's name in one of a model's layers, which are numbered."""


class ScheduleFree(Protocol):
    """An optimizer with two sets of weights: those that gradients are taken at, and their average."""

    param_groups: list[dict[str, Any]]
    """Under `train_mode`: which of the two stands in the parameters."""

    def train(self) -> None:
        """Bring those that gradients are taken at into the parameters."""
        ...

    def eval(self) -> None:
        """Bring the average into the parameters."""
        ...


def build_optimizer(section: Optimizer, parameters: Mapping[str, nn.Parameter]) -> torch.optim.Optimizer:
    """The optimizer over `parameters`; weight decay is on all of them alike.

    Raises MissingExtraError where its library is not installed.
    """
    params = list(parameters.values())
    common: dict[str, Any] = {"lr": section.lr, "weight_decay": section.weight_decay}
    match section:
        case AdamW() | Sgd() | Adagrad() | Rmsprop() | Lomo():
            return _of_torch(section, params, common)
        case Adafactor() | Adalomo():
            return _of_transformers(section, params, common)
        case GrokAdamW():
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
        case Ademamix() | GaloreAdamW() | ScheduleFreeSgd():
            return _of_pytorch_optimizer(section, parameters, common)
        case _:
            assert_never(section)


def _of_torch(
    section: AdamW | Sgd | Adagrad | Rmsprop | Lomo, params: Sequence[nn.Parameter], common: dict[str, Any]
) -> torch.optim.Optimizer:
    match section:
        case AdamW():
            return torch.optim.AdamW(
                params, **common, betas=section.betas, eps=section.eps, fused=section.fused
            )
        case Sgd():
            return torch.optim.SGD(
                params,
                **common,
                momentum=section.momentum,
                dampening=section.dampening,
                nesterov=section.nesterov,
            )
        case Adagrad():
            return torch.optim.Adagrad(
                params,
                **common,
                lr_decay=section.lr_decay,
                initial_accumulator_value=section.initial_accumulator,
                eps=section.eps,
            )
        case Rmsprop():
            return torch.optim.RMSprop(
                params,
                **common,
                alpha=section.alpha,
                momentum=section.momentum,
                centered=section.centered,
                eps=section.eps,
            )
        case Lomo():
            return torch.optim.SGD(params, **common)


def _of_transformers(
    section: Adafactor | Adalomo, params: Sequence[nn.Parameter], common: dict[str, Any]
) -> torch.optim.Optimizer:
    from transformers import Adafactor as AdafactorOptimizer

    return AdafactorOptimizer(  # type: ignore[no-untyped-call]
        params,
        **common,
        eps=section.eps,
        clip_threshold=section.clip_threshold,
        decay_rate=section.decay_rate,
        beta1=None if isinstance(section, Adalomo) else section.beta1,
        scale_parameter=isinstance(section, Adalomo) or section.scale_parameter,
        relative_step=False,
    )


def _of_pytorch_optimizer(
    section: Ademamix | GaloreAdamW | ScheduleFreeSgd,
    parameters: Mapping[str, nn.Parameter],
    common: dict[str, Any],
) -> torch.optim.Optimizer:
    try:
        import pytorch_optimizer as library
    except ImportError as error:
        raise MissingExtraError(
            f"The optimizer {section.type} comes with the package pytorch_optimizer, which is not "
            "installed: pip install 'strop[optimizers]'"
        ) from error
    match section:
        case Ademamix():
            return library.AdEMAMix(
                list(parameters.values()),
                **common,
                betas=section.betas,
                alpha=section.alpha,
                t_alpha_beta3=section.ramp_updates,
                eps=section.eps,
                weight_decouple=True,
            )
        case GaloreAdamW():
            return library.GaLore(
                _galore_groups(section, parameters), **common, betas=section.betas, eps=section.eps
            )
        case ScheduleFreeSgd():
            return library.ScheduleFreeSGD(
                list(parameters.values()),
                **common,
                momentum=section.momentum,
                r=section.r,
                weight_lr_power=section.weight_lr_power,
            )


def _galore_groups(section: GaloreAdamW, parameters: Mapping[str, nn.Parameter]) -> list[dict[str, Any]]:
    """The layers' matrices, which are projected, and the rest: embeddings, the head, biases and norms."""
    projected = {name for name, p in parameters.items() if p.dim() == 2 and _IN_A_LAYER.search(name)}
    settings = {
        "rank": section.rank,
        "update_proj_gap": section.update_every,
        "scale": section.scale,
        "projection_type": section.projection,
    }
    matrices = [p for name, p in parameters.items() if name in projected]
    rest = [p for name, p in parameters.items() if name not in projected]
    groups = ({"params": matrices, **settings}, {"params": rest})
    return [group for group in groups if group["params"]]
