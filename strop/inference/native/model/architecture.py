"""Architectures that the native decoder supports, and their sizes."""

from __future__ import annotations

from dataclasses import dataclass

from transformers import PretrainedConfig

NATIVE_MODEL_TYPES = {
    "llama": "llama",
    "mistral": "mistral",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen2_vl": "qwen2",
    "qwen2_5_vl": "qwen2",
    "qwen3_vl": "qwen3",
}
"""Family of the decoder by values of `model_type` in config.json; those of the Qwen-VL families have a vision tower."""
STATIC_ROPE_TYPES = ("default", "linear", "llama3", "yarn")
"""Rotary embeddings whose frequencies do not depend on the longest sequence in the batch."""


@dataclass(frozen=True, slots=True)
class DecoderArchitecture:
    """Sizes of a Llama-style decoder: RMS norm, rotary positions, gated SiLU."""

    layers: int
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    sliding_windows: tuple[int | None, ...]
    """[layers] Number of last tokens that a layer attends to; None for all."""
    qk_norm: bool
    """Whether queries and keys are normalized per head (Qwen3)."""
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    tied_embeddings: bool
    """Whether the language-model head is the embedding."""

    @classmethod
    def from_config(cls, config: PretrainedConfig) -> DecoderArchitecture:
        """Read the sizes of a model for which `native_unsupported_reason` is None."""
        family, tied = NATIVE_MODEL_TYPES[config.model_type], config.tie_word_embeddings
        config = config.get_text_config()
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
            sliding_windows=_sliding_windows(config),
            qk_norm=family == "qwen3",
            qkv_bias=family == "qwen2" or bias,
            output_bias=family != "qwen2" and bias,
            mlp_bias=bool(getattr(config, "mlp_bias", False)),
            tied_embeddings=tied,
        )


def native_unsupported_reason(config: PretrainedConfig) -> str | None:
    """Reason why a model needs Hugging Face's forward; None if the native decoder supports it."""
    if config.model_type not in NATIVE_MODEL_TYPES:
        return f"{config.model_type} has no native forward"
    quantized = getattr(config, "quantization_config", None) is not None
    config = config.get_text_config()
    if config.hidden_act != "silu":
        return f"the activation {config.hidden_act!r} is not native"
    rope = config.rope_parameters
    if rope["rope_type"] not in STATIC_ROPE_TYPES:
        return f"rotary embeddings of type {rope['rope_type']!r} are not native"
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        return "rotary embeddings of a part of each head are not native"
    if quantized:
        return "quantized weights are not native"
    return None


def _sliding_windows(config: PretrainedConfig) -> tuple[int | None, ...]:
    """Mistral has a sliding window in every layer, Qwen by `layer_types`, Llama has none."""
    layers: int = config.num_hidden_layers
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * layers
    if config.model_type == "mistral":
        kinds = ["sliding_attention"] * layers
    window: int | None = config.sliding_window if "sliding_attention" in kinds else None
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)
