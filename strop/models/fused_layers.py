"""Layers of a decoder as single autograd functions: RMS norm, gated MLP with SiLU, and linear layers with an adapter.

The modules of transformers and PEFT compute them from several operations, each of which keeps its input for the
backward pass. These functions keep less and make fewer passes over memory:

    RMS norm          its input and one number per token, where the modules keep a float32 copy, the normalized
                      values and more; forward values are the same, bit for bit
    SiLU(gate) * up   the two factors; SiLU(gate) is computed again. Values and gradients are the same, bit for bit
    W x + s B (A x)   x and A x; B (A x) is added to the product in place, and so rounded once

`fuse_layers` replaces the classes of modules whose own forward pass is one of these formulas. It compares them on an
example; a class whose forward pass cannot be run on the example keeps it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from peft.tuners.lora import Linear as LoraLinear
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.distributed.tensor import DTensor

from strop.models.library_settings import one_line

_PROBE_EPS = 1e-3
_REPLACED = "class_without_fused_layer"
"""Attribute of a fused class: the class that it replaced."""
_ATTRIBUTES = {
    "RMSNorm": ("weight", "variance_epsilon"),
    "MLP": ("gate_proj", "up_proj", "down_proj", "act_fn"),
}
"""Attributes that a function needs, by the end of the name of the classes that are compared with it."""


def fuse_layers(model: nn.Module) -> None:
    """Replace the classes of the model's modules, in place, where a function here computes the same.

    Their parameters, names and hooks stay.
    """
    for module in model.modules():
        kind: Any = type(module)
        needed = next((names for end, names in _ATTRIBUTES.items() if kind.__name__.endswith(end)), ())
        if all(hasattr(module, name) for name in needed) and (fused := _fused_class(kind)) is not None:
            module.__class__ = fused


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """[..., H] x / sqrt(mean(x^2) + eps) in float32, rounded to the type of `x`, times `weight` [H].

    Root mean square layer normalization, arXiv 1910.07467.
    """
    out: Tensor = _RmsNorm.apply(x, weight, eps)  # type: ignore[no-untyped-call]
    return out


def silu_product(gate: Tensor, up: Tensor) -> Tensor:
    """[..., D] SiLU(gate) * up (arXiv 2002.05202)."""
    out: Tensor = _SiluProduct.apply(gate, up)  # type: ignore[no-untyped-call]
    return out


def adapted_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, b: Tensor, scale: float
) -> Tensor:
    """[..., out] Product of x [..., in] with a frozen weight [out, in], plus scale * B (A x) of a LoRA adapter (arXiv
    2106.09685) with A [rank, in] and B [out, rank]."""
    rows = x.reshape(-1, x.shape[-1])
    out: Tensor = _AdaptedLinear.apply(rows, weight, bias, a, b, scale)  # type: ignore[no-untyped-call]
    # A view that the function itself returned could not be changed in place, which Llama 4 does.
    return out.view(*x.shape[:-1], len(weight))


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        values = x.float()
        scale = torch.rsqrt(values.pow(2).mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x, weight, scale)
        normalized = _times(x, values, scale).to(x.dtype)
        return normalized.mul_(weight) if weight.dtype == x.dtype else normalized * weight

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """With n the normalized values, w the weight, r the scale and g the gradient of w n:

        d x = r (w g - n mean(w g n))        d w = sum over tokens of g n
        """
        x, weight, scale = ctx.saved_tensors
        normalized, of_product = _times(x, x.float(), scale), grad.float()
        products = of_product * normalized
        grad_weight = None
        if ctx.needs_input_grad[1]:
            grad_weight = products.flatten(0, -2).sum(0).to(weight.dtype)
        grad_x = None
        if ctx.needs_input_grad[0]:
            mean = (products @ weight.float()).div_(x.shape[-1])
            grad_x = _times(grad, of_product, weight)
            grad_x = grad_x.addcmul_(normalized, mean[..., None], value=-1).mul_(scale).to(x.dtype)
        return grad_x, grad_weight, None


def _times(source: Tensor, values: Tensor, factor: Tensor) -> Tensor:
    """values * factor; in place where `values` is a converted copy of `source`."""
    return values * factor if values is source else values.mul_(factor)


class _SiluProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return F.silu(gate).mul_(up)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        return torch.ops.aten.silu_backward(grad * up, gate), F.silu(gate).mul_(grad)


class _AdaptedLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, b: Tensor, scale: float
    ) -> Tensor:
        low = rows @ a.T
        out = F.linear(rows, weight, bias).addmm_(low, b.T, alpha=scale)
        ctx.save_for_backward(rows, weight, a, b, low)
        ctx.scale = scale
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight, a, b, low = ctx.saved_tensors
        grad_low = (grad @ b).mul_(ctx.scale)
        grad_rows = None
        if ctx.needs_input_grad[0]:
            grad_rows = (grad @ weight).addmm_(grad_low, a)
        grad_a = grad_low.T @ rows
        return grad_rows, None, None, grad_a, (grad.T @ low).mul_(ctx.scale), None


@cache
def _fused_class(original: type[nn.Module]) -> type[nn.Module] | None:
    """A subclass of the same name with a function's forward pass; None where no function computes the same."""
    forward: Callable[..., Tensor]
    if hasattr(original, _REPLACED):
        return None
    if original is LoraLinear:
        forward = _lora_linear_forward
    elif _is_rms_norm(original):
        forward = _rms_norm_forward
    elif _is_gated_mlp(original):
        forward = _gated_mlp_forward
    else:
        return None
    names = {
        "forward": forward,
        _REPLACED: original,
        "__module__": original.__module__,
        "__qualname__": original.__qualname__,
    }
    return type(original.__name__, (original,), names)


def _rms_norm_forward(self: Any, hidden_states: Tensor) -> Tensor:
    if isinstance(self.weight, DTensor):
        return _own_forward(self, hidden_states)
    return rms_norm(hidden_states, self.weight, self.variance_epsilon)


def _gated_mlp_forward(self: Any, x: Tensor) -> Tensor:
    if not _is_silu(self.act_fn):
        return _own_forward(self, x)
    down: Tensor = self.down_proj(silu_product(self.gate_proj(x), self.up_proj(x)))
    return down


def _lora_linear_forward(self: Any, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    adapters: list[str] = self.active_adapters
    is_other_pass = args or kwargs or self.disable_adapters or self.merged or len(adapters) != 1
    if is_other_pass or not _is_plain(self, adapters[0], x):
        return _own_forward(self, x, *args, **kwargs)
    adapter = adapters[0]
    base = self.base_layer
    a, b = self.lora_A[adapter].weight, self.lora_B[adapter].weight
    return adapted_linear(x, base.weight, base.bias, a, b, self.scaling[adapter])


def _is_plain(module: Any, adapter: str, x: Tensor) -> bool:
    """Whether a layer has no dropout, is frozen, and holds whole tensors of one type in this process."""
    if adapter not in module.lora_A or adapter in module.lora_variant:
        return False
    base = module.base_layer
    if type(base) is not nn.Linear or base.weight.requires_grad:
        return False
    if not isinstance(module.lora_dropout[adapter], nn.Identity):
        return False
    weights = (base.weight, module.lora_A[adapter].weight, module.lora_B[adapter].weight)
    if base.bias is not None and (base.bias.requires_grad or isinstance(base.bias, DTensor)):
        return False
    return module.lora_B[adapter].bias is None and all(
        # DeepSpeed's ZeRO-3 gives parameters this attribute and gathers them in the hooks of their own module.
        not isinstance(weight, DTensor) and not hasattr(weight, "ds_id") and weight.dtype == x.dtype
        for weight in weights
    )


def _own_forward(self: Any, *args: Any, **kwargs: Any) -> Tensor:
    """The forward pass of the class that was replaced."""
    out: Tensor = getattr(self, _REPLACED).forward(self, *args, **kwargs)
    return out


def _is_silu(activation: Any) -> bool:
    return isinstance(activation, nn.SiLU) or type(activation).__name__ == "SiLUActivation"


def _is_rms_norm(kind: Any) -> bool:
    """Whether a class's forward pass is `rms_norm`."""
    if not kind.__name__.endswith("RMSNorm"):
        return False
    x, weight = torch.linspace(-2, 3, 10).view(2, 5).bfloat16(), torch.linspace(0.5, 2, 5).bfloat16()
    own = _output(kind, SimpleNamespace(weight=weight, variance_epsilon=_PROBE_EPS), x)
    return own is not None and torch.equal(own, rms_norm(x, weight, _PROBE_EPS))


def _is_gated_mlp(kind: Any) -> bool:
    """Whether a class's forward pass is a product of `silu_product` where its activation is SiLU."""
    if not kind.__name__.endswith("MLP"):
        return False
    x = torch.linspace(-2, 3, 10).view(2, 5)
    stub = SimpleNamespace(gate_proj=torch.cos, up_proj=torch.exp, down_proj=torch.sin, act_fn=F.silu)
    own = _output(kind, stub, x)
    return own is not None and torch.equal(own, torch.sin(silu_product(torch.cos(x), torch.exp(x))))


def _output(kind: Any, stub: SimpleNamespace, x: Tensor) -> Tensor | None:
    """Result of a class's forward pass with the attributes of `stub`; None if it is no tensor or cannot be computed."""
    try:
        own = kind.forward(stub, x)
    except (AttributeError, TypeError):
        return None  # it needs other attributes or arguments, so it is another formula
    except Exception as error:  # noqa: BLE001  (the class is foreign code, and its own forward pass remains)
        warnings.warn(
            f"{kind.__module__}.{kind.__qualname__} cannot be compared with Strop's fused layer, so it runs as it is: "
            f"{one_line(error)}",
            stacklevel=2,
        )
        return None
    return own if isinstance(own, Tensor) else None
