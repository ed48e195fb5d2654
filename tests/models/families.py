"""Small configurations of every documented model family, and variants of families with kernel paths of their own."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from strop.models.tiny import make_model

_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
_DELTA_NET = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"],
}
_SOFTCAPS = {"final_logit_softcapping": 2.0, "attn_logit_softcapping": 1.5}
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen2": {},
    "qwen3": {},
    "llama": {},
    "mistral": {"sliding_window": 6},
    "gemma": {},
    "gemma2": {"sliding_window": 6, "query_pre_attn_scalar": 8, **_SOFTCAPS},
    "gemma3_text": {"sliding_window": 6, "query_pre_attn_scalar": 8},
    "vaultgemma": {"sliding_window": 6, "query_pre_attn_scalar": 8, **_SOFTCAPS},
    "phi": {},
    "phi3": {},
    "granite": {"logits_scaling": 3.0},
    "cohere": {"logit_scale": 0.3},
    "qwen3_moe": _EXPERTS,
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "olmoe": {"num_experts": 4, "num_experts_per_tok": 2},
    "glm4_moe": {
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "n_group": 1,
        "topk_group": 1,
    },
    "llama4_text": {
        "num_local_experts": 4,
        "num_experts_per_tok": 1,
        "intermediate_size_mlp": 48,
        "attention_chunk_size": 8,
        "layer_types": ["chunked_attention", "full_attention"],
    },
    "lfm2": {"layer_types": ["conv", "full_attention"], "conv_L_cache": 3, "block_multiple_of": 8},
    "qwen3_next": {**_EXPERTS, **_DELTA_NET, "shared_expert_intermediate_size": 24},
    "qwen3_5_text": _DELTA_NET,
    "jamba": {
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "mamba_d_state": 8,
        "mamba_d_conv": 3,
        "mamba_dt_rank": 4,
        "use_mamba_kernels": False,
    },
    "mamba": {"state_size": 8, "conv_kernel": 3, "expand": 2, "time_step_rank": 4},
}
"""Values of config.json by `model_type`, besides the sizes of `make_model`."""
NATIVE = ("qwen2", "qwen3", "llama", "mistral")
"""Families whose decoding steps the native engine computes itself."""
EXPERTS = ("qwen3_moe", "mixtral", "olmoe", "glm4_moe", "qwen3_next")
"""Families whose experts `all-linear` adapts."""


def rope(kind: str, **options: float) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 100.0, **options}}


_BY_TYPE = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "tied": ("qwen2", {"tied": True}),
    "attention bias": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "qwen3 bias": ("qwen3", {"attention_bias": True}),
    "one kv head per head": ("llama", {"kv_heads": 4}),
    "one kv head": ("llama", {"kv_heads": 1}),
    "large heads": ("qwen3", {"head_dim": 48}),
    "mistral's head size": ("mistral", {"head_dim": 16}),
    "no sliding window": ("mistral", {"sliding_window": None}),
    "sliding in upper layers": (
        "qwen2",
        {"layers": 3, "use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1},
    ),
    "sliding by type": ("qwen3", {"layers": 3, "use_sliding_window": True, "sliding_window": 5, **_BY_TYPE}),
    "linear rope": ("llama", rope("linear", factor=4.0)),
    "llama3 rope": (
        "llama",
        rope(
            "llama3",
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=32,
        ),
    ),
    "yarn": ("qwen2", rope("yarn", factor=4.0, original_max_position_embeddings=64)),
    "gpt2": ("gpt2", {"n_positions": 256}),
    "another activation": ("llama", {"hidden_act": "gelu"}),
}
"""Families with other values."""


@cache
def family_folder(root: Path, family: str) -> Path:
    """A model of two layers with large weights, so that every layer affects the outputs."""
    return _make(root / family, family, FAMILIES[family])


@cache
def perturbed_folder(root: Path, case: str) -> Path:
    """A model of a family or variant, whose norms and biases differ from their first values."""
    family, options = VARIANTS.get(case) or (case, FAMILIES[case])
    folder = _make(root / case, family, options)
    model = AutoModelForCausalLM.from_pretrained(folder)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return folder


def _make(folder: Path, family: str, options: dict[str, Any]) -> Path:
    sizes = {"vocab_size": 280, "hidden_size": 32, "max_tokens": 256, "tied": False, "initializer_range": 0.2}
    return make_model(folder, ["max 1 2"], family=family, **(sizes | options))
