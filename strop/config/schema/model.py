"""`model`: the model that is trained."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from strop.config.schema.base import Section

DTYPE_BYTES: Mapping[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of one value of each `dtype`."""


class LoraConfig(Section):
    """Low-rank adapter that is trained instead of all weights (arXiv 2106.09685)."""

    rank: int = Field(default=64, gt=0)
    """Rank of the two factors."""
    alpha: float = Field(default=32, gt=0)
    """Numerator of the adapter's scale, alpha / rank."""
    use_rslora: bool | None = None
    """Scale alpha / sqrt(rank) instead of alpha / rank (rank-stabilized LoRA, arXiv 2312.03732); if omitted, that of
    `adapter`, and false for a new one."""
    rank_pattern: dict[str, Annotated[int, Field(gt=0)]] | None = None
    """Ranks of modules that differ from `rank`, by a regular expression for the end of a module's name, of which the
    first that fits counts; if omitted, those of `adapter`."""
    alpha_pattern: dict[str, Annotated[float, Field(gt=0)]] | None = None
    """Alphas of modules that differ from `alpha`, written as `rank_pattern`; if omitted, those of `adapter`."""
    targets: str | tuple[str, ...] = "all-linear"
    """Modules that get an adapter: `all-linear`, a list of names, or a regular expression. With `adapter`,
    `all-linear` are the modules that it adapts."""
    exclude: str | tuple[str, ...] | None = None
    """Modules without an adapter even if `targets` matches them: a list of names or a regular expression. Null
    excludes the vision tower of a model with images; an empty list excludes none."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Fraction of the adapter's inputs that dropout sets to zero in training."""
    adapter: str | None = None
    """PEFT folder of an adapter of the same rank, alpha and modules, whose weights the policy's adapter starts with;
    null for a new adapter. The reference is the model without it."""

    def faults(self) -> Iterator[str]:
        """Faults of the patterns."""
        for name in ("rank_pattern", "alpha_pattern"):
            for pattern in getattr(self, name) or ():
                try:
                    re.compile(pattern)
                except re.error as error:
                    yield f"{name} has {pattern!r}, which is no regular expression ({error}); write a module's name"


class QuantizationConfig(Section):
    """Storage of the weights of the linear layers under an adapter in 4 or 8 bits, in the formats of bitsandbytes or
    torchao (QLoRA, arXiv 2305.14314); each product is one with the dequantized weight."""

    library: Literal["bitsandbytes", "torchao"] = "bitsandbytes"
    """Package that quantizes and dequantizes. torchao has `nf4` with `double`, and `int8`."""
    bits: Literal[4, 8] = 4
    """Bits of a value."""
    type: Literal["nf4", "fp4", "int8"] | None = None
    """Values that a code stands for: `nf4`, quantiles of a normal distribution, or `fp4`, of 4 bits; `int8`, of 8 bits,
    with one scale per output feature. If omitted, `nf4` or `int8`."""
    double: bool = False
    """Store the scales of the blocks in 8 bits too, which saves 0.4 bits per value of 4 bits."""
    block_size: Literal[64, 128, 256, 512, 1024, 2048, 4096] = 64
    """Number of 4-bit values with one scale."""

    @property
    def code(self) -> Literal["nf4", "fp4", "int8"]:
        """`type` or its default."""
        return self.type or ("nf4" if self.bits == 4 else "int8")

    def faults(self) -> Iterator[str]:
        """Faults between the fields."""
        if (self.code == "int8") != (self.bits == 8):
            yield f"type {self.code} has {12 - self.bits} bits and bits is {self.bits}; remove one of the two"
        elif self.bits == 8 and (self.double or self.block_size != 64):
            yield "double and block_size are settings of 4 bits; remove them, or write bits: 4"
        elif self.library == "torchao" and self.bits == 4 and not (self.code == "nf4" and self.double):
            yield (
                "torchao's only type of 4 bits is nf4, whose scales it stores in 8 bits; write type: nf4 and double: "
                "true, or library: bitsandbytes"
            )


class ModelConfig(Section):
    """Model that is trained."""

    path: str
    """Hugging Face model folder, GGUF file (or folder with one), or name on the Hub."""
    tokenizer: str | None = None
    """Tokenizer folder, or a name on the Hub; the model's own if omitted."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Data type of the trained parameters, and therefore of the optimizer's state."""
    compute_dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """Data type of the matrix products; `dtype` if omitted. bfloat16 with float32 parameters is mixed
    precision; float16 needs the scaled losses of the DeepSpeed engine."""
    override: dict[str, Any] = Field(default_factory=dict)
    """Values that replace those of the model's config.json, such as `attention_dropout: 0.1`; a key that
    config.json does not have is an error."""
    imports: tuple[str, ...] = ()
    """Python modules, or files `name.py`, that are imported before the model is loaded, for example to
    register its class."""
    lora: LoraConfig | None = None
    """Low-rank adapter that is trained; null trains all weights."""
    quantization: QuantizationConfig | None = None
    """Storage of the frozen weights under `lora` in 4 or 8 bits; null keeps them in `compute_dtype`, and those of a
    quantized folder as they are."""
    freeze_vision: bool = False
    """Keep the weights of the vision tower of a model with images, including its projection to the decoder's width
    in the Qwen-VL families. With `lora` they are frozen anyway."""
    freeze_router: bool = False
    """Keep the weights of the routers of a mixture of experts. With `lora` they are frozen anyway."""
    gradient_checkpointing: bool | Literal["selective"] = False
    """Recompute each layer in the backward pass: less memory, about a third more computation. `selective` keeps the
    results of matrix products and of attention kernels and recomputes what is between them."""
    gradient_checkpointing_interval: int = Field(default=1, gt=0)
    """Distance between recomputed layers: 1 recomputes every layer, 2 every second one."""
    activation_offload: bool = False
    """Move the inputs of recomputed layers from the GPU to the CPU's memory until the backward pass."""
    compile: bool = False
    """Compile each layer with torch.compile at its first call: a minute, and a compiler for C++ on a CPU. Not with
    DeepSpeed."""
    trust_remote_code: bool = False
    """Run Python code from the model folder."""

    def faults(self) -> Iterator[str]:
        """Faults between the fields."""
        if self.quantization is not None and self.lora is None:
            yield (
                "quantization is of frozen weights, and without lora all weights are trained, of which a quantized one "
                "has no gradient; add lora, such as `lora: {rank: 16}`, or remove quantization"
            )
        if self.quantization is not None and self.compile:
            yield "torch.compile does not compile products with quantized weights; write compile: false"
        if self.compile and self.gradient_checkpointing == "selective":
            yield (
                "torch.compile decides itself what a compiled layer keeps; write gradient_checkpointing: true or "
                "compile: false"
            )
        if not self.gradient_checkpointing and (
            self.activation_offload or self.gradient_checkpointing_interval > 1
        ):
            yield (
                "activation_offload and gradient_checkpointing_interval are settings of recomputed layers; write "
                "gradient_checkpointing: true or selective, or remove them"
            )
