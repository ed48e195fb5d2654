"""Optimizers: construction from the run file's section, each from the library that maintains it, and fused updates.

GrokAdamW has the arithmetic of the grokadamw package (0.1) without grokking signals. The package itself is not used:
it configures logging at import, keeps its state outside of torch's optimizer state, and calls deprecated functions of
torch. Tests compare the two.

A fused backward pass updates each parameter once its gradient is complete, which is then freed: at most one
parameter's gradient is in memory at a time (LOMO, arXiv 2306.09782). In return, gradients cannot be accumulated over
micro-batches, nor clipped by their norm.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from functools import partial
from typing import Any, Protocol, assert_never
from weakref import WeakMethod

import torch
from torch import Tensor, nn

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
from strop.errors import MissingExtraError, PlacementError, TrainingError
from strop.types import GlobalCounts, MicroBatch

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
            return GrokAdamW(
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


class GrokAdamW(torch.optim.Optimizer):
    """AdamW on `gradient + lamb * ema(gradient)` (the filter of arXiv 2405.20233).

    The n-th tensor's first moment decays by `betas[0] * (1 - gamma) ** n`. Its bias correction uses
    `betas[0]`, as in the package: the first updates of later tensors are up to `1 / (1 - betas[0])` times
    AdamW's, so a warm-up is recommended.
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter] | Iterable[dict[str, Any]],
        *,
        lr: float,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
        alpha: float,
        lamb: float,
        gamma: float,
        max_tensor_norm: float | None,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "alpha": alpha,
            "lamb": lamb,
            "gamma": gamma,
            "max_tensor_norm": max_tensor_norm,
        }
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            for index, parameter in enumerate(group["params"]):
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group, index)
        return loss

    def _update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any], index: int) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = 0
            for name in ("exp_avg", "exp_avg_sq", "slow"):
                state[name] = torch.zeros_like(parameter)
        state["step"] += 1
        if group["max_tensor_norm"] is not None:
            nn.utils.clip_grads_with_norm_(parameter, group["max_tensor_norm"], gradient.norm())
        beta1, beta2 = group["betas"]
        own_beta1 = beta1 * (1 - group["gamma"]) ** index
        state["slow"].mul_(group["alpha"]).add_(gradient, alpha=1 - group["alpha"])
        boosted = gradient + group["lamb"] * state["slow"]
        state["exp_avg"].mul_(own_beta1).add_(boosted, alpha=1 - own_beta1)
        state["exp_avg_sq"].mul_(beta2).addcmul_(boosted, boosted, value=1 - beta2)
        bias1, bias2 = 1 - beta1 ** state["step"], 1 - beta2 ** state["step"]
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        root = state["exp_avg_sq"].sqrt().add_(group["eps"])
        parameter.addcdiv_(state["exp_avg"], root, value=-group["lr"] * math.sqrt(bias2) / bias1)


def call_with_gradients(parameters: Iterable[nn.Parameter], method: Callable[[int, Tensor], None]) -> None:
    """Call a bound method with the number of each parameter, and the parameter, whenever it has a new gradient.

    The method's object is held weakly: torch keeps hooks where Python's garbage collector does not see them, so that
    parameters which their own hooks reach would never be freed.
    """
    weak = WeakMethod(method)

    def call(number: int, parameter: Tensor) -> None:
        if (bound := weak()) is not None:
            bound(number, parameter)

    for number, parameter in enumerate(parameters):
        parameter.register_post_accumulate_grad_hook(partial(call, number))  # type: ignore[no-untyped-call]


class FusedBackward:
    """Hooks an optimizer into the backward pass of a model."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        masters: Mapping[str, nn.Parameter],
        computing: Mapping[str, nn.Parameter],
    ) -> None:
        """`optimizer` updates `masters`; `computing` are the same parameters, or their copies in another dtype."""
        self._optimizer = optimizer
        self._masters = [masters[name] for name in computing]
        self._norms: list[Tensor] = []
        call_with_gradients(computing.values(), self._update)

    def pop_grad_norm(self) -> Tensor:
        """Norm of the gradients since the last call; 0 without any."""
        norm = torch.stack(self._norms).norm() if self._norms else torch.zeros(())
        self._norms.clear()
        return norm

    @torch.no_grad()
    def _update(self, number: int, computing: Tensor) -> None:
        master = self._masters[number]
        assert computing.grad is not None
        master.grad, gradient = computing.grad.to(master.dtype), computing.grad
        self._norms.append(gradient.norm(dtype=torch.float32))
        self._optimizer.step()  # updates this parameter only: no other has a gradient
        computing.grad = master.grad = None
        if computing is not master:
            computing.copy_(master)


def require_single_micro_batch(micro_batch: MicroBatch, counts: GlobalCounts) -> None:
    """Raises TrainingError for a micro-batch that is not the whole update."""
    own, total = len(micro_batch.targets), counts.measured_tokens + counts.expert_tokens
    if own != total:
        raise TrainingError(
            "lomo and adalomo update the weights during the backward pass, so an update must be one micro-batch; "
            f"this one holds {own} of the update's {total} trained tokens. The weights are unchanged. Write a "
            "larger `microbatch` or a smaller `tasks_per_update`, or use another optimizer."
        )
