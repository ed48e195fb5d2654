"""Which models the native forward understands, and their sizes."""

from __future__ import annotations

from dataclasses import dataclass

from transformers import PretrainedConfig

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
STATIC_ROPE = ("default", "linear", "llama3", "yarn")
"""Rotary embeddings whose frequencies do not depend on the longest sequence in the batch."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """Sizes of a decoder of the Llama kind: RMS norm, rotary positions, gated SiLU."""

    layers: int
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    windows: tuple[int | None, ...]
    """[layers] How many last tokens a layer attends to; None for all."""
    qk_norm: bool
    """Queries and keys are normalised per head (Qwen3)."""
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    tied: bool
    """The head is the embedding."""

    @classmethod
    def of(cls, config: PretrainedConfig) -> Architecture:
        """Read the sizes; only for a config to which `why_not_native` has no objection."""
        family = config.model_type
        bias = bool(getattr(config, "attention_bias", False))
        heads = config.num_attention_heads
        return cls(
            layers=config.num_hidden_layers,
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            heads=heads,
            kv_heads=config.num_key_value_heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
            norm_eps=config.rms_norm_eps,
            windows=_windows(config),
            qk_norm=family == "qwen3",
            qkv_bias=family == "qwen2" or bias,
            output_bias=family != "qwen2" and bias,
            mlp_bias=bool(getattr(config, "mlp_bias", False)),
            tied=config.tie_word_embeddings,
        )


def why_not_native(config: PretrainedConfig) -> str | None:
    """Why a model must go through Hugging Face's own forward; None where it need not."""
    if config.model_type not in FAMILIES:
        return f"{config.model_type} has no native forward"
    if config.hidden_act != "silu":
        return f"the activation {config.hidden_act!r} is not native"
    rope = config.rope_parameters
    if rope["rope_type"] not in STATIC_ROPE:
        return f"rotary embeddings of type {rope['rope_type']!r} are not native"
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        return "rotary embeddings of a part of each head are not native"
    if getattr(config, "quantization_config", None) is not None:
        return "quantized weights are not native"
    return None


def _windows(config: PretrainedConfig) -> tuple[int | None, ...]:
    """Mistral slides in every layer, Qwen by `layer_types`, Llama never."""
    layers: int = config.num_hidden_layers
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * layers
    if config.model_type == "mistral":
        kinds = ["sliding_attention"] * layers
    window: int | None = config.sliding_window if "sliding_attention" in kinds else None
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)
