"""`trainer.optimizer` and `trainer.schedule`: optimizers and learning rate schedules, one class each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from strop.config.schema.base import Section
from strop.config.units import Amount, Rounding, ScheduleLength, WarmupLength

DecayRate = Annotated[float, Field(ge=0, lt=1)]
"""Decay of a running average; 0 keeps no history."""


class BaseOptimizerConfig(Section):
    """Fields of every optimizer."""

    fused_backward: ClassVar[bool] = False
    """Whether the optimizer updates weights during the backward pass; gradients can then be neither
    accumulated nor clipped."""

    lr: float = Field(default=1e-6, ge=0)
    """Peak learning rate of the schedule."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Fraction of a weight, times the learning rate, that each update subtracts from it."""
    decay_norms_and_biases: bool = True
    """Apply the weight decay to the weights of norms and to biases too; false leaves them out, as transformers' trainer
    does: modules `LayerNorm`, and parameters with `bias`, `layernorm`, `rmsnorm`, `norm` or `..._norm` in their
    names."""


class AdamWConfig(BaseOptimizerConfig):
    """Adam with decoupled weight decay (arXiv 1711.05101); torch's implementation."""

    type: Literal["adamw"] = "adamw"
    betas: tuple[DecayRate, DecayRate] = (0.9, 0.999)
    """Decay rates of the first and the second moment."""
    eps: float = Field(default=1e-8, gt=0)
    """Constant added to the square root of the second moment."""
    weight_decay: float = Field(default=0.01, ge=0)
    """Fraction of a weight, times the learning rate, that each update subtracts from it."""
    fused: bool = True
    """Use one kernel for the whole update: the same formula, faster, with different rounding."""


class BitsAndBytesAdamWConfig(BaseOptimizerConfig):
    """AdamW whose moments are stored in 8 bits, in blocks with a scale each (arXiv 2110.02861); bitsandbytes'
    implementation."""

    type: Literal["adamw_bnb"] = "adamw_bnb"
    bits: Literal[8, 32] = 8
    """Size of each stored moment. Tensors of fewer than 4,096 numbers have moments in 32 bits."""
    paged: bool = False
    """Keep the moments in memory that the GPU's driver moves to the CPU when the GPU has too little; needs a GPU."""
    betas: tuple[DecayRate, DecayRate] = (0.9, 0.999)
    """Decay rates of the first and the second moment."""
    eps: float = Field(default=1e-8, gt=0)
    """Constant added to the square root of the second moment."""
    weight_decay: float = Field(default=0.01, ge=0)
    """Fraction of a weight, times the learning rate, that each update subtracts from it."""

    def faults(self) -> Iterator[str]:
        """Faults between the fields."""
        if self.bits == 32 and not self.paged:
            yield "bits is 32 without paged: true, which is torch's AdamW; write type: adamw, or bits: 8"


class AdafactorConfig(BaseOptimizerConfig):
    """Adam with factored second moments of matrices (arXiv 1804.04235); transformers' implementation."""

    type: Literal["adafactor"] = "adafactor"
    eps: tuple[float, float] = (1e-30, 1e-3)
    """Two constants: one added to the squared gradient, and the minimum root mean square of the weights for
    `scale_parameter`."""
    clip_threshold: float = Field(default=1.0, gt=0)
    """Maximum root mean square of a tensor's update, before the learning rate."""
    decay_rate: float = Field(default=-0.8, lt=0)
    """Exponent of the second moment's decay, which is `1 - t ** decay_rate` after `t` updates."""
    beta1: DecayRate | None = None
    """Decay rate of the first moment; null for no first moment."""
    scale_parameter: bool = False
    """Multiply the learning rate by the root mean square of each tensor's weights."""


class AdemamixConfig(BaseOptimizerConfig):
    """AdamW with an additional slow average of the gradient (arXiv 2409.03137); pytorch_optimizer's
    implementation."""

    type: Literal["ademamix"] = "ademamix"
    betas: tuple[DecayRate, DecayRate, DecayRate] = (0.9, 0.999, 0.9999)
    """Decay rates of the fast average, of the second moment, and of the slow average."""
    alpha: float = Field(default=5.0, ge=0)
    """Weight of the slow average; the fast average has weight 1."""
    ramp_updates: int | None = Field(default=None, gt=0)
    """Number of updates over which `alpha` and the slow decay rate increase to their values; null for no
    ramp."""
    eps: float = Field(default=1e-8, gt=0)
    """Constant added to the square root of the second moment."""
    weight_decay: float = Field(default=0.01, ge=0)
    """Fraction of a weight, times the learning rate, that each update subtracts from it."""


class SgdConfig(BaseOptimizerConfig):
    """Gradient descent with optional momentum; torch's implementation."""

    type: Literal["sgd"] = "sgd"
    momentum: DecayRate = 0.0
    """Decay rate of the average of gradients; 0 for no momentum."""
    dampening: DecayRate = 0.0
    """Fraction of the new gradient that is omitted from the average."""
    nesterov: bool = False
    """Use Nesterov momentum."""

    def faults(self) -> Iterator[str]:
        """Faults between the fields."""
        if self.nesterov and (self.momentum == 0 or self.dampening != 0):
            yield ("nesterov requires a momentum above 0 and dampening 0")


class AdagradConfig(BaseOptimizerConfig):
    """Adagrad: each weight's rate decreases with the sum of its squared gradients; torch's implementation."""

    type: Literal["adagrad"] = "adagrad"
    lr_decay: float = Field(default=0.0, ge=0)
    """Decay of the rate, which update `t` divides by `1 + (t - 1) * lr_decay`."""
    initial_accumulator: float = Field(default=0.0, ge=0)
    """Initial value of each sum of squared gradients."""
    eps: float = Field(default=1e-10, gt=0)
    """Constant added to the square root of the sum."""


class RmspropConfig(BaseOptimizerConfig):
    """RMSprop: gradients divided by the root of their running mean square; torch's implementation."""

    type: Literal["rmsprop"] = "rmsprop"
    alpha: DecayRate = 0.99
    """Decay rate of the mean square."""
    momentum: DecayRate = 0.0
    """Decay rate of the average of updates; 0 for no momentum."""
    centered: bool = False
    """Divide by the standard deviation instead of the root mean square."""
    eps: float = Field(default=1e-8, gt=0)
    """Constant added to the root."""


class GaloreAdamWConfig(BaseOptimizerConfig):
    """AdamW with low-rank moments of the layers' matrices (arXiv 2403.03507); pytorch_optimizer's
    implementation."""

    type: Literal["galore_adamw"] = "galore_adamw"
    rank: int = Field(default=128, gt=0)
    """Rank of the projection of a matrix's gradient."""
    update_every: int = Field(default=200, gt=0)
    """Interval, in updates, at which the projection is recomputed from the current gradient."""
    scale: float = Field(default=0.25, gt=0)
    """Scale of the update after it is projected back."""
    projection: Literal["std", "reverse_std", "left", "right"] = "std"
    """Side of the matrix that is projected: `std` for the longer one, `reverse_std` for the shorter one."""
    betas: tuple[DecayRate, DecayRate] = (0.9, 0.999)
    """Decay rates of the first and the second moment."""
    eps: float = Field(default=1e-8, gt=0)
    """Constant added to the square root of the second moment."""


class LomoConfig(BaseOptimizerConfig):
    """Gradient descent during the backward pass, without storing gradients (arXiv 2306.09782); torch's
    SGD."""

    type: Literal["lomo"] = "lomo"
    fused_backward: ClassVar[bool] = True


class AdalomoConfig(BaseOptimizerConfig):
    """Adafactor's update during the backward pass, relative to each tensor's size (arXiv 2310.10195);
    transformers' implementation."""

    type: Literal["adalomo"] = "adalomo"
    fused_backward: ClassVar[bool] = True
    eps: tuple[float, float] = (1e-30, 1e-3)
    """Two constants: one added to the squared gradient, and the minimum root mean square of the weights."""
    clip_threshold: float = Field(default=1.0, gt=0)
    """Maximum root mean square of a tensor's update, before the learning rate."""
    decay_rate: float = Field(default=-0.8, lt=0)
    """Exponent of the second moment's decay, which is `1 - t ** decay_rate` after `t` updates."""


class GrokAdamWConfig(BaseOptimizerConfig):
    """AdamW on gradients plus their slow average; the grokadamw package's formula."""

    type: Literal["grokadamw"] = "grokadamw"
    betas: tuple[DecayRate, DecayRate] = (0.9, 0.999)
    """Decay rates of the first and the second moment."""
    alpha: DecayRate = 0.98
    """Decay rate of the slow average."""
    lamb: float = Field(default=2.0, ge=0)
    """Weight of the slow average; the gradient has weight 1."""
    gamma: DecayRate = 0.1
    """Decrease of the first beta over the model's tensors: the n-th one, from 0, has `beta * (1 - gamma) **
    n`."""
    max_tensor_norm: float | None = Field(default=1.0, gt=0)
    """Maximum norm of each tensor's gradient; larger gradients are scaled down to it. Null for no limit."""
    eps: float = Field(default=1e-8, gt=0)
    """Constant added to the square root of the second moment."""
    weight_decay: float = Field(default=0.01, ge=0)
    """Fraction of a weight, times the learning rate, that each update subtracts from it."""


class ScheduleFreeSgdConfig(BaseOptimizerConfig):
    """SGD that averages its weights instead of decaying the rate (arXiv 2405.15682); pytorch_optimizer's
    implementation."""

    type: Literal["schedule_free_sgd"] = "schedule_free_sgd"
    momentum: float = Field(default=0.9, gt=0, lt=1)
    """Point at which gradients are computed, between the plain iterate (0) and the average (1)."""
    r: float = Field(default=0.0, ge=0)
    """Exponent of the weight of update `t` in the average, `t ** r`."""
    weight_lr_power: float = Field(default=2.0, ge=0)
    """Exponent of the maximum learning rate so far, a second factor of that weight."""


OptimizerConfig = Annotated[
    AdamWConfig
    | BitsAndBytesAdamWConfig
    | AdafactorConfig
    | AdemamixConfig
    | SgdConfig
    | AdagradConfig
    | RmspropConfig
    | GaloreAdamWConfig
    | LomoConfig
    | AdalomoConfig
    | GrokAdamWConfig
    | ScheduleFreeSgdConfig,
    Field(discriminator="type"),
]


class WeightDecayIncreaseConfig(Section):
    """Increase of the weight decay over the run, as in Megatron."""

    style: Literal["linear", "cosine"] = "linear"
    """Curve of the increase."""
    start: float = Field(default=0.0, ge=0)
    """Initial weight decay; the final one is `trainer.optimizer.weight_decay`."""


def clipping_faults(optimizer: OptimizerConfig, max_grad_norm: float | None) -> Iterator[str]:
    """A fault if gradients would be clipped that an optimizer never stores."""
    if optimizer.fused_backward and max_grad_norm is not None:
        yield (
            f"{optimizer.type} updates the weights during the backward pass, so the norm of the whole "
            "gradient is "
            "unknown and cannot be clipped; write max_grad_norm: null, or another optimizer"
        )


SHARDABLE_OPTIMIZERS = ("adamw", "sgd", "adagrad", "rmsprop")
"""Optimizers whose update of an element depends on that element alone, so that parameters can be sharded."""


def sharding_faults(engine: str, optimizer: OptimizerConfig) -> Iterator[str]:
    """A fault if an optimizer needs complete parameters, of which each rank has only a shard."""
    if optimizer.type not in SHARDABLE_OPTIMIZERS:
        yield (
            f"engine.type {engine} divides the optimizer's state over the ranks, but optimizer {optimizer.type} needs "
            f"complete parameters; write one of {', '.join(SHARDABLE_OPTIMIZERS)}, or engine: local"
        )
    elif engine == "deepspeed" and optimizer.type == "adagrad" and not optimizer.decay_norms_and_biases:
        yield (
            "DeepSpeed makes one group of all parameters for adagrad, so that decay_norms_and_biases: false would have "
            "no effect; write engine: fsdp2, another optimizer, or decay_norms_and_biases: true"
        )


class BaseScheduleConfig(Section):
    """Fields of every schedule."""

    warmup: WarmupLength = Amount(0, "steps")
    """Length of the linear warm-up; `%` is of the whole run, 0 is no warm-up."""
    warmup_rounding: Rounding = "down"
    """Rounding of a warm-up in `%` to whole steps or updates: `down`, as verl, or `up`, as transformers' trainer."""
    start_ratio: float = Field(default=0.0, ge=0, le=1)
    """Learning rate at the start of the warm-up, as a fraction of the peak rate."""
    interval: Literal["steps", "updates"] = "steps"
    """Interval at which the rate changes: each step or each update."""


class DecayScheduleConfig(BaseScheduleConfig):
    """Fields of every schedule that decays to a final rate."""

    min_ratio: float = Field(default=0.0, ge=0, le=1)
    """Final learning rate, as a fraction of the peak rate."""
    length: ScheduleLength | None = None
    """Position at which the decay ends, from the start of the run; the end of the run if omitted."""


class ConstantScheduleConfig(BaseScheduleConfig):
    """Constant rate."""

    type: Literal["constant"] = "constant"


class LinearScheduleConfig(DecayScheduleConfig):
    """Linear decay."""

    type: Literal["linear"] = "linear"


class CosineScheduleConfig(DecayScheduleConfig):
    """Cosine decay."""

    type: Literal["cosine"] = "cosine"
    cycles: float = Field(default=0.5, gt=0)
    """Periods of the cosine over the run; 0.5 decays once."""


class CosineWithRestartsScheduleConfig(DecayScheduleConfig):
    """Cosine decay that restarts at the peak rate."""

    type: Literal["cosine_with_restarts"] = "cosine_with_restarts"
    cycles: int = Field(default=1, gt=0)
    """Number of decays."""


class PolynomialScheduleConfig(DecayScheduleConfig):
    """Polynomial decay: a power of the remaining fraction of the run."""

    type: Literal["polynomial"] = "polynomial"
    power: float = Field(default=1.0, gt=0)
    """Exponent; 1 is linear, a larger exponent decays faster at first."""


class InverseSqrtScheduleConfig(DecayScheduleConfig):
    """Decay with the inverse square root of the time since the warm-up."""

    type: Literal["inverse_sqrt"] = "inverse_sqrt"
    timescale: ScheduleLength | None = None
    """Time scale of the decay: after three time scales the rate is half its peak; the length of the warm-up
    if omitted (10,000 without a warm-up)."""


class WsdScheduleConfig(DecayScheduleConfig):
    """Warm-up, stable, decay: the peak rate, and a decay in the last part of the run."""

    type: Literal["wsd"] = "wsd"
    decay: ScheduleLength = Amount(10, "%")
    """Length of the decay at the end; `%` is of the part after the warm-up."""
    style: Literal["cosine", "linear", "exponential", "minus_sqrt", "constant"] = "cosine"
    """Curve of the decay; `constant` keeps the peak rate to the end."""


class ReduceOnPlateauScheduleConfig(BaseScheduleConfig):
    """Reduction of the rate when an evaluation metric stops improving."""

    type: Literal["reduce_lr_on_plateau"] = "reduce_lr_on_plateau"
    metric: str | None = None
    """Evaluation metric, such as `eval/gsm8k/reward`; the first eval taskset's reward if omitted."""
    mode: Literal["max", "min"] = "max"
    """Direction of improvement: `max` for a metric that should increase, `min` for one that should
    decrease."""
    factor: float = Field(default=0.1, gt=0, lt=1)
    """Factor of each reduction."""
    patience: int = Field(default=10, ge=0)
    """Number of consecutive evaluations without improvement that are tolerated; the next one reduces the
    rate."""
    threshold: float = Field(default=1e-4, ge=0)
    """Minimum improvement that counts."""
    threshold_mode: Literal["rel", "abs"] = "rel"
    """Meaning of `threshold`: `rel` is a fraction of the best value, `abs` a difference from it."""
    cooldown: int = Field(default=0, ge=0)
    """Number of evaluations after a reduction that are ignored."""
    min_ratio: float = Field(default=0.0, ge=0, le=1)
    """Minimum learning rate, as a fraction of the peak rate."""


_MetricFreeKinds = (
    ConstantScheduleConfig
    | LinearScheduleConfig
    | CosineScheduleConfig
    | CosineWithRestartsScheduleConfig
    | PolynomialScheduleConfig
    | InverseSqrtScheduleConfig
    | WsdScheduleConfig
)
MetricFreeScheduleConfig = Annotated[_MetricFreeKinds, Field(discriminator="type")]
"""Schedules that depend only on the position in the run."""
ScheduleConfig = Annotated[_MetricFreeKinds | ReduceOnPlateauScheduleConfig, Field(discriminator="type")]
