"""Every model type that transformers maps to a causal language model or a sequence-to-sequence one: loaded or refused.

A type that loads has the log-probs of its own forward pass (`load_model` compares them).
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, PretrainedConfig
from transformers.models.auto import modeling_auto

from strop.config.schema.model import ModelConfig
from strop.errors import ModelError
from strop.models.fused_layers import fuse_layers
from strop.models.loading import load_model
from tests.cases import nightly

CAUSAL = tuple(modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
SEQUENCE_TO_SEQUENCE = tuple(modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES)
LAYERS = 2
SIZES: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "embedding_size", "word_embed_proj_dim", "dim"), 32),
    **dict.fromkeys(
        ("intermediate_size", "d_ff", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim", "n_inner"), 48
    ),
    **dict.fromkeys(("moe_intermediate_size", "expert_ffn_hidden_size", "ffn_hidden_size"), 48),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "num_layers", "n_layers", "encoder_layers"), LAYERS),
    **dict.fromkeys(("decoder_layers", "num_decoder_layers"), LAYERS),
    **dict.fromkeys(("num_attention_heads", "n_head", "num_heads", "n_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "n_kv_heads"), 4),
    **dict.fromkeys(("head_dim", "d_kv", "v_head_dim", "qk_nope_head_dim", "qk_rope_head_dim"), 8),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_k", "moe_topk"), 2),
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank"), 16),
    "first_k_dense_replace": 1,
    "rotary_dim": 4,
    "qk_head_dim": 16,
    "n_group": 1,
    "topk_group": 1,
    "vocab_size": 61,
    "pad_token_id": 0,
    "max_position_embeddings": 128,
    "n_positions": 128,
}
"""Small values of the options of config.json that a type has."""
PROMPT = torch.tensor([[5, 9, 30, 7, 11, 3]])
QUICK = ("gpt_oss", "nllb-moe", "switch_transformers")


def small_config(model_type: str) -> PretrainedConfig:
    """The smallest configuration of a type that the common options give."""
    kind = type(AutoConfig.for_model(model_type))
    known = inspect.signature(kind.__init__).parameters
    fields = {**known, **getattr(kind, "__dataclass_fields__", {})}
    return AutoConfig.for_model(
        model_type, **{name: value for name, value in SIZES.items() if name in fields}
    )


def cases(names: tuple[str, ...]) -> list[Any]:
    others = [name for name in names if name not in QUICK]
    return [*(name for name in names if name in QUICK), *nightly(*others)]


@pytest.mark.parametrize("model_type", cases(CAUSAL))
def test_a_causal_model_is_loaded_or_refused(tmp_path: Path, model_type: str) -> None:
    try:
        config = small_config(model_type)
        with torch.device("meta"):
            size = sum(p.numel() for p in AutoModelForCausalLM.from_config(config).parameters())
        if size > 20_000_000:
            pytest.skip(f"the common options leave {size / 1e6:.0f} million parameters")
        model = AutoModelForCausalLM.from_config(config)
        model.save_pretrained(tmp_path)
    except Exception as error:  # noqa: BLE001  (transformers refuses these sizes)
        pytest.skip(f"the common options do not make one: {type(error).__name__}: {error}"[:300])
    try:
        load_model(ModelConfig(path=str(tmp_path)), device="cpu")
    except ModelError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize("model_type", cases(SEQUENCE_TO_SEQUENCE))
def test_an_encoder_decoder_model_is_refused(tmp_path: Path, model_type: str) -> None:
    """Its layers stay as they are, or have fused ones."""
    try:
        config = small_config(model_type)
        config.save_pretrained(tmp_path)
        with torch.device("meta"):
            model = AutoModelForSeq2SeqLM.from_config(config)
    except Exception as error:  # noqa: BLE001  (transformers refuses these sizes)
        pytest.skip(f"the common options do not make one: {type(error).__name__}: {error}"[:300])
    fuse_layers(model)
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(ModelError) as raised:
        load_model(ModelConfig(path=str(tmp_path)), device="cpu")
    assert "\n" not in str(raised.value)
