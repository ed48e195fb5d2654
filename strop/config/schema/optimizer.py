"""`trainer.optimizer`: what turns gradients into steps. One class for each, with its own options."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from strop.config.schema.base import Section

Share = Annotated[float, Field(ge=0, lt=1)]
"""A decay of a running average: 0 keeps nothing of the past."""


class OptimizerBase(Section):
    """What every optimizer has."""

    fused_backward: ClassVar[bool] = False
    """Whether weights move during backward: no gradient is ever whole, so none can be added up or clipped."""

    lr: float = Field(1e-6, ge=0)
    """The schedule's highest learning rate."""
    weight_decay: float = Field(0.0, ge=0)
    """Share of a weight, times the learning rate, taken off at each update."""


class AdamW(OptimizerBase):
    """Adam with decoupled weight decay (arXiv 1711.05101); torch's."""

    type: Literal["adamw"] = "adamw"
    betas: tuple[Share, Share] = (0.9, 0.999)
    """Decay of the first and second moment's averages."""
    eps: float = Field(1e-8, gt=0)
    """Added to the second moment's root."""
    weight_decay: float = Field(0.01, ge=0)
    """Share of a weight, times the learning rate, taken off at each update."""
    fused: bool = True
    """One kernel for the whole update: the same formula, faster, other rounding."""


class Adafactor(OptimizerBase):
    """Second moments of a matrix kept as a row and a column (arXiv 1804.04235); transformers'."""

    type: Literal["adafactor"] = "adafactor"
    eps: tuple[float, float] = (1e-30, 1e-3)
    """Added to the squared gradient; the least weight size that `scale_parameter` takes."""
    clip_threshold: float = Field(1.0, gt=0)
    """Bound on the root mean square of a tensor's update, before the learning rate."""
    decay_rate: float = Field(-0.8, lt=0)
    """The second moment's decay after `t` updates is `1 - t ** decay_rate`."""
    beta1: Share | None = None
    """Decay of a first moment; null keeps none."""
    scale_parameter: bool = False
    """Multiply the learning rate by the root mean square of each tensor's weights."""


class Ademamix(OptimizerBase):
    """AdamW with a second, slow average of the gradient (arXiv 2409.03137); pytorch_optimizer's."""

    type: Literal["ademamix"] = "ademamix"
    betas: tuple[Share, Share, Share] = (0.9, 0.999, 0.9999)
    """Decay of the fast average, of the second moment, and of the slow average."""
    alpha: float = Field(5.0, ge=0)
    """Weight of the slow average; the fast one has 1."""
    ramp_updates: int | None = Field(None, gt=0)
    """Updates over which `alpha` and the slow decay climb to their values; null for at once."""
    eps: float = Field(1e-8, gt=0)
    """Added to the second moment's root."""
    weight_decay: float = Field(0.01, ge=0)
    """Share of a weight, times the learning rate, taken off at each update."""


class Sgd(OptimizerBase):
    """Gradient descent, with momentum if asked for; torch's."""

    type: Literal["sgd"] = "sgd"
    momentum: Share = 0.0
    """Decay of the average of gradients that is followed; 0 follows the gradient itself."""
    dampening: Share = 0.0
    """Share of the new gradient that is kept out of the average."""
    nesterov: bool = False
    """Look one step ahead along the average."""

    @model_validator(mode="after")
    def _nesterov_has_momentum(self) -> Sgd:
        if self.nesterov and (self.momentum == 0 or self.dampening != 0):
            raise ValueError("nesterov wants a momentum above 0 and no dampening")
        return self


class Adagrad(OptimizerBase):
    """Each weight's rate falls with the sum of its squared gradients; torch's."""

    type: Literal["adagrad"] = "adagrad"
    lr_decay: float = Field(0.0, ge=0)
    """The rate of update `t` is divided by `1 + (t - 1) * lr_decay`."""
    initial_accumulator: float = Field(0.0, ge=0)
    """What each sum begins with."""
    eps: float = Field(1e-10, gt=0)
    """Added to the sum's root."""


class Rmsprop(OptimizerBase):
    """Gradients divided by the root of their running mean square; torch's."""

    type: Literal["rmsprop"] = "rmsprop"
    alpha: Share = 0.99
    """Decay of the mean square."""
    momentum: Share = 0.0
    """Decay of the average of steps that is followed."""
    centered: bool = False
    """Divide by the standard deviation instead."""
    eps: float = Field(1e-8, gt=0)
    """Added to the root."""


class GaloreAdamW(OptimizerBase):
    """AdamW with low-rank moments of the layers' matrices (arXiv 2403.03507); pytorch_optimizer's."""

    type: Literal["galore_adamw"] = "galore_adamw"
    rank: int = Field(128, gt=0)
    """Of the space that a matrix's gradient is projected to."""
    update_every: int = Field(200, gt=0)
    """Updates until the space is found anew, from that update's gradient."""
    scale: float = Field(0.25, gt=0)
    """Multiplies what is projected back."""
    projection: Literal["std", "reverse_std", "left", "right"] = "std"
    """The side that is projected: `std` the longer one, `reverse_std` the shorter."""
    betas: tuple[Share, Share] = (0.9, 0.999)
    """Decay of the first and second moment's averages."""
    eps: float = Field(1e-8, gt=0)
    """Added to the second moment's root."""


class Lomo(OptimizerBase):
    """Gradient descent during backward: no gradient is kept (arXiv 2306.09782); torch's SGD."""

    type: Literal["lomo"] = "lomo"
    fused_backward: ClassVar[bool] = True


class Adalomo(OptimizerBase):
    """Adafactor's step during backward, relative to each weight's size (arXiv 2310.10195); transformers'."""

    type: Literal["adalomo"] = "adalomo"
    fused_backward: ClassVar[bool] = True
    eps: tuple[float, float] = (1e-30, 1e-3)
    """Added to the squared gradient; the least weight size that is taken."""
    clip_threshold: float = Field(1.0, gt=0)
    """Bound on the root mean square of a tensor's update, before the learning rate."""
    decay_rate: float = Field(-0.8, lt=0)
    """The second moment's decay after `t` updates is `1 - t ** decay_rate`."""


class GrokAdamW(OptimizerBase):
    """AdamW on gradients with their own slow average added; the grokadamw package's formula."""

    type: Literal["grokadamw"] = "grokadamw"
    betas: tuple[Share, Share] = (0.9, 0.999)
    """Decay of the first and second moment's averages."""
    alpha: Share = 0.98
    """Decay of the slow average."""
    lamb: float = Field(2.0, ge=0)
    """Weight of the slow average; the gradient itself has 1."""
    gamma: Share = 0.1
    """The first beta of the model's n-th tensor, counted from 0, is multiplied by `(1 - gamma) ** n`."""
    max_tensor_norm: float | None = Field(1.0, gt=0)
    """Each tensor's gradient is scaled down to this length; null for no bound."""
    eps: float = Field(1e-8, gt=0)
    """Added to the second moment's root."""
    weight_decay: float = Field(0.01, ge=0)
    """Share of a weight, times the learning rate, taken off at each update."""


class ScheduleFreeSgd(OptimizerBase):
    """SGD that averages its weights in place of a falling rate (arXiv 2405.15682); pytorch_optimizer's."""

    type: Literal["schedule_free_sgd"] = "schedule_free_sgd"
    momentum: float = Field(0.9, gt=0, lt=1)
    """Where gradients are taken: between the plain iterate (0) and the average (1)."""
    r: float = Field(0.0, ge=0)
    """Update `t` counts `t ** r` in the average."""
    weight_lr_power: float = Field(2.0, ge=0)
    """And the highest rate so far to this power."""


Optimizer = Annotated[
    AdamW
    | Adafactor
    | Ademamix
    | Sgd
    | Adagrad
    | Rmsprop
    | GaloreAdamW
    | Lomo
    | Adalomo
    | GrokAdamW
    | ScheduleFreeSgd,
    Field(discriminator="type"),
]


class WeightDecayIncrease(Section):
    """The weight decay climbs over the run, as Megatron's does."""

    style: Literal["linear", "cosine"] = "linear"
    """The curve of the climb."""
    start: float = Field(0.0, ge=0)
    """Where it begins; it ends at `trainer.optimizer.weight_decay`."""


def check_clipping(optimizer: Optimizer, max_grad_norm: float | None) -> None:
    """Raises ValueError where gradients would be clipped that are never whole."""
    if optimizer.fused_backward and max_grad_norm is not None:
        raise ValueError(
            f"{optimizer.type} moves the weights during backward, so the gradient is never whole and its "
            "norm cannot be bounded: write max_grad_norm: null, or another optimizer"
        )


SHARDABLE = ("adamw", "sgd", "adagrad", "rmsprop")
"""Those that move each element by itself, and so any part of a parameter."""


def check_sharded(optimizer: Optimizer) -> None:
    """Raises ValueError where an optimizer looks at whole parameters, of which each rank has a part."""
    if optimizer.type not in SHARDABLE:
        raise ValueError(
            f"engine.type is fsdp2, where each rank has a part of every parameter, and {optimizer.type} "
            f"looks at whole ones: write one of {', '.join(SHARDABLE)}, or engine: single"
        )
