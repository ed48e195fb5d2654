"""GrokAdamW, with the arithmetic of the grokadamw package (0.1) without grokking signals.

The package itself is not used: it configures logging at import, keeps its state outside of torch's optimizer
state, and calls deprecated functions of torch. Tests compare the two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn


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
