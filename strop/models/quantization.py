"""Weights in 4 or 8 bits, in the formats of bitsandbytes and torchao, which are dequantized for each product (QLoRA,
arXiv 2305.14314)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils._pytree import tree_map
from transformers import PretrainedConfig, PreTrainedModel

from strop.config.schema.model import QuantizationConfig
from strop.errors import ModelError
from strop.models.value_head import SCORE
from strop.models.vision.embedding import takes_images, vision_modules

_HANDLES = (torch.ops.aten.detach.default, torch.ops.aten.alias.default)
"""Operations whose result is the same weight."""
_SCALES_PER_BLOCK = 256
"""Number of scales of torchao's nf4 with one scale of their own, where a weight has a multiple of it."""


@dataclass(frozen=True, slots=True)
class QuantizedMatrix:
    """Codes of one matrix, and what they are dequantized with."""

    shape: tuple[int, int]
    """Output and input features."""
    codes: Tensor
    """uint8, two values each, in blocks; or int8 [out, in]."""
    values: Callable[[], Tensor]
    """The library's dequantization of the codes."""

    def dequantize(self, dtype: torch.dtype) -> Tensor:
        """[out, in] in `dtype`."""
        return self.values().to(dtype).view(self.shape)


class QuantizedWeight(Tensor):
    """A frozen weight [out, in] of a linear layer, stored quantized. An operation sees its dequantized values in the
    weight's dtype and returns an ordinary tensor; nothing writes to it."""

    matrices: tuple[QuantizedMatrix, ...]
    """Stacked by rows."""

    @staticmethod
    def __new__(cls, matrices: Sequence[QuantizedMatrix], dtype: torch.dtype) -> QuantizedWeight:
        """`matrices` have the same number of columns."""
        rows, columns = sum(each.shape[0] for each in matrices), matrices[0].shape[1]
        weight: QuantizedWeight = Tensor._make_wrapper_subclass(
            cls, (rows, columns), dtype=dtype, device=matrices[0].codes.device
        )
        weight.matrices = tuple(matrices)
        return weight

    def __init__(self, matrices: Sequence[QuantizedMatrix], dtype: torch.dtype) -> None:
        super().__init__()

    def __repr__(self) -> str:  # type: ignore[override]
        return f"QuantizedWeight(shape={tuple(self.shape)}, dtype={self.dtype})"

    def data_ptr(self) -> int:
        """Address of the codes."""
        return self.matrices[0].codes.data_ptr()

    def full_precision(self) -> Tensor:
        """The dequantized weight."""
        parts = [matrix.dequantize(self.dtype) for matrix in self.matrices]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is F.linear and not kwargs:
            return _Product.apply(*args, *([None] * (3 - len(args))))  # type: ignore[no-untyped-call]
        return torch._C._disabled_torch_function_impl(func, types, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch's own signature has no class
        cls,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func in _HANDLES:
            return cls(args[0].matrices, args[0].dtype)
        if isinstance(args[0], cls) and func._schema.arguments[0].is_write:
            raise TypeError(f"{func} would write to a quantized weight")
        return func(*tree_map(full_precision, args), **tree_map(full_precision, kwargs or {}))


class _Product(torch.autograd.Function):
    """[..., out] x [..., in] times a quantized weight; the dequantized weight is not kept for the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: QuantizedWeight, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(weight)
        return F.linear(x, weight.full_precision(), bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (weight,) = ctx.saved_tensors
        return grad @ weight.full_precision(), None, None


def full_precision(value: Any) -> Any:
    """A quantized weight dequantized; anything else as it is."""
    return value.full_precision() if isinstance(value, QuantizedWeight) else value


def stack_quantized(weights: Sequence[Tensor]) -> QuantizedWeight | None:
    """Quantized weights of one dtype stacked by rows, over the same codes; None where some are not quantized."""
    quantized = [weight for weight in weights if isinstance(weight, QuantizedWeight)]
    if len(quantized) < len(weights):
        return None
    return QuantizedWeight([part for weight in quantized for part in weight.matrices], quantized[0].dtype)


def quantize_linear_layers(
    model: PreTrainedModel, section: QuantizationConfig, device: torch.device | str
) -> None:
    """Quantize the weights of a frozen model's linear layers, on `device`, except its heads and its vision tower.

    Raises `ModelError` for a model without such layers, and where the library is not installed.
    """
    kept = {model.get_output_embeddings()}  # type: ignore[no-untyped-call]
    if takes_images(model.config):
        kept |= {module for part in vision_modules(model) for module in part.modules()}
    layers = [
        module
        for name, module in model.named_modules()
        if type(module) is nn.Linear and module not in kept and name != SCORE
    ]
    if not layers:
        raise ModelError(
            f"model.quantization: a {model.config.model_type} model has no linear layer that is quantized. Remove the "
            "key."
        )
    for layer in layers:
        matrix = _quantized(layer.weight.detach().to(device), section)
        layer.weight = nn.Parameter(QuantizedWeight([matrix], layer.weight.dtype), requires_grad=False)


def _quantized(weight: Tensor, section: QuantizationConfig) -> QuantizedMatrix:
    shape = (len(weight), weight.shape[1])
    if section.library == "torchao":
        library = _library("torchao.quantization")
        if section.bits == 8:
            tensor = library.Int8Tensor.from_hp(weight, granularity=library.PerRow())
            return QuantizedMatrix(shape, tensor.qdata, tensor.dequantize)
        blocks, rest = divmod(weight.numel(), section.block_size)
        if rest:
            raise ModelError(
                f"model.quantization: a weight of shape {list(shape)} has no whole number of blocks of "
                f"{section.block_size} values. Write a smaller block_size, or library: bitsandbytes."
            )
        tensor = library.to_nf4(weight.contiguous(), section.block_size, math.gcd(blocks, _SCALES_PER_BLOCK))
        return QuantizedMatrix(shape, tensor.quantized_data, tensor.get_original_weight)
    functional = _library("bitsandbytes.functional")
    if section.bits == 8:
        codes, scales, _ = functional.int8_vectorwise_quant(weight.half())
        return QuantizedMatrix(shape, codes, partial(functional.int8_vectorwise_dequant, codes, scales))
    codes, state = functional.quantize_4bit(
        weight.contiguous(),
        blocksize=section.block_size,
        compress_statistics=section.double,
        quant_type=section.code,
    )
    return QuantizedMatrix(shape, codes, partial(functional.dequantize_4bit, codes, state))


def is_bitsandbytes(config: PretrainedConfig) -> bool:
    """Whether the files of a model have bitsandbytes' weights."""
    quantization = getattr(config, "quantization_config", None) or {}
    values = quantization if isinstance(quantization, dict) else quantization.to_dict()
    return values.get("quant_method") == "bitsandbytes"


def adopt_quantized_layers(model: PreTrainedModel) -> None:
    """Replace bitsandbytes' layers, as which transformers loads a quantized checkpoint, by linear layers over the same
    codes."""
    library, functional = _library("bitsandbytes.nn"), _library("bitsandbytes.functional")
    for name, module in list(model.named_modules()):
        if isinstance(module, library.Linear4bit):
            state, codes = module.weight.quant_state, module.weight.data
            matrix = QuantizedMatrix(
                tuple(state.shape), codes, partial(functional.dequantize_4bit, codes, state)
            )
        elif isinstance(module, library.Linear8bitLt):
            codes = module.weight.CB
            matrix = QuantizedMatrix(
                tuple(codes.shape),
                codes,
                partial(functional.int8_vectorwise_dequant, codes, module.weight.SCB),
            )
        else:
            continue
        layer = nn.Linear(matrix.shape[1], matrix.shape[0], bias=False, device="meta")
        layer.weight = nn.Parameter(QuantizedWeight([matrix], model.dtype), requires_grad=False)
        layer.bias = module.bias
        model.set_submodule(name, layer)
    of_model: Any = model
    of_model._weight_conversions = [
        conversion
        for conversion in getattr(model, "_weight_conversions", ())
        if not any("bitsandbytes" in type(each).__module__ for each in getattr(conversion, "operations", ()))
    ]
    del model.config.quantization_config, of_model.hf_quantizer
    for name in ("is_quantized", "is_loaded_in_4bit", "is_loaded_in_8bit"):
        setattr(model, name, False)  # which PEFT reads


@cache
def _library(module: str) -> Any:
    """A module of bitsandbytes or torchao. Raises ModelError where it cannot be imported."""
    package = module.partition(".")[0]
    try:
        return import_module(module)
    except ImportError as error:
        raise ModelError(
            f"model.quantization needs the package {package}, which cannot be imported ({error}): "
            f"pip install 'strop[{package}]'"
        ) from error
