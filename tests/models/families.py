"""Small configurations of every documented model family."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from strop.models.tiny import make_model

_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
_DELTA_NET = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"],
}
_MAMBA = {"state_size": 8, "conv_kernel": 3, "expand": 2, "time_step_rank": 4}
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen2": {},
    "qwen3": {},
    "llama": {},
    "mistral": {"sliding_window": 6},
    "gemma": {},
    "gemma2": {
        "sliding_window": 6,
        "final_logit_softcapping": 2.0,
        "attn_logit_softcapping": 1.5,
        "query_pre_attn_scalar": 8,
    },
    "gemma3_text": {"sliding_window": 6, "query_pre_attn_scalar": 8},
    "vaultgemma": {
        "sliding_window": 6,
        "final_logit_softcapping": 2.0,
        "attn_logit_softcapping": 1.5,
        "query_pre_attn_scalar": 8,
    },
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
    "mamba": _MAMBA,
}
"""Values of config.json by `model_type`, besides the sizes of `make_model`."""


@cache
def family_folder(root: Path, family: str) -> Path:
    """A model of two layers with large weights, so that every layer affects the outputs."""
    return make_model(
        root / family,
        ["max 1 2"],
        family=family,
        vocab_size=280,
        hidden_size=32,
        tied=False,
        max_tokens=256,
        **{"initializer_range": 0.2, **FAMILIES[family]},
    )
