"""Small random models for prompts with images, for examples, tests and benchmarks."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import Any

from strop.models.tiny import decoder_values, make_tokenizer

_CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}IMAGE"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
_QWEN_TOKENS = ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>", "<|video_pad|>")
_MAX_TILE_ROWS = 3
_TILE_TOKENS = (
    *("<image>", "<fake_token_around_image>", "<global-img>"),
    *(f"<row_{row}_col_{column}>" for row, column in product(range(1, _MAX_TILE_ROWS + 1), repeat=2)),
)
_NAMED_TOKENS = {
    "gemma3": {
        "boi_token": "<start_of_image>",
        "image_token": "<image_soft_token>",
        "eoi_token": "<end_of_image>",
    },
    "internvl": {
        "start_image_token": "<img>",
        "context_image_token": "<IMG_CONTEXT>",
        "end_image_token": "</img>",
        "video_token": "<video>",
    },
}
"""Tokens that the processors of transformers find in the tokenizer by a name."""
_IMAGE_TEXTS = {
    "gemma3": "<start_of_image>",
    "idefics3": "<image>",
    "internvl": "<IMG_CONTEXT>",
    "smolvlm": "<image>",
}
"""Text of the chat template for an image; otherwise that of Qwen-VL."""


def make_vision_model(
    folder: Path,
    corpus: Iterable[str],
    *,
    family: str = "qwen2_5_vl",
    vocab_size: int = 512,
    hidden_size: int = 64,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    patch_size: int = 8,
    vision_size: int = 64,
    vision_layers: int = 2,
    min_pixels: int = 32 * 32,
    max_pixels: int = 64 * 64,
    seed: int = 0,
) -> Path:
    """Write a Hugging Face folder with random float32 weights, a tokenizer and an image processor.

    `family` is one of `qwen2_vl`, `qwen2_5_vl`, `qwen3_vl`, `idefics3`, `smolvlm`, `gemma3` and `internvl`. Two by two
    patches become one token; the last four families have tiles of four by four patches.
    """
    import torch
    from transformers import AutoConfig, AutoModelForImageTextToText

    from strop.models.library_settings import silence_transformers

    folder.mkdir(parents=True, exist_ok=True)
    make_tokenizer(folder, corpus, vocab_size)
    ids, size = _add_image_tokens(folder, family)
    text = decoder_values(size, hidden_size, layers, heads, kv_heads, max_tokens=4096)
    text["tie_word_embeddings"] = True
    vision = {"patch_size": patch_size, "hidden_size": vision_size, "num_heads": 4, "depth": vision_layers}
    values = (
        _TILE_VALUES[family](text, vision, ids)
        if family in _TILE_VALUES
        else _qwen(family, text, vision, ids)
    )
    config = AutoConfig.for_model(family, **values, tie_word_embeddings=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForImageTextToText.from_config(config, dtype=torch.float32)  # type: ignore[no-untyped-call]
    model.generation_config.eos_token_id = text["eos_token_id"]
    model.generation_config.pad_token_id = text["pad_token_id"]
    with silence_transformers():
        model.save_pretrained(folder)
    processor = _processor(family, patch_size, min_pixels, max_pixels)
    (folder / "preprocessor_config.json").write_text(json.dumps(processor, indent=2), encoding="utf-8")
    return folder


def _processor(family: str, patch_size: int, min_pixels: int, max_pixels: int) -> dict[str, Any]:
    """Values of preprocessor_config.json."""
    tile = 4 * patch_size
    splitting = {
        "size": {"longest_edge": 2 * tile},
        "max_image_size": {"longest_edge": tile},
        "do_image_splitting": True,
    }
    own: dict[str, dict[str, Any]] = {
        "idefics3": {"image_processor_type": "Idefics3ImageProcessor", **splitting},
        "smolvlm": {"image_processor_type": "SmolVLMImageProcessor", **splitting},
        "gemma3": {
            "image_processor_type": "Gemma3ImageProcessor",
            "size": {"height": tile, "width": tile},
            "image_seq_length": 4,
        },
        "internvl": {
            "image_processor_type": "GotOcr2ImageProcessor",
            "size": {"height": tile, "width": tile},
            "max_patches": 4,
        },
    }
    grid = {"patch_size": patch_size, "temporal_patch_size": 2, "merge_size": 2}
    limits = {"min_pixels": min_pixels, "max_pixels": max_pixels}
    return own.get(family, {"image_processor_type": "Qwen2VLImageProcessor", **grid, **limits})


def _add_image_tokens(folder: Path, family: str) -> tuple[dict[str, int], int]:
    """Ids of the family's special tokens, and the tokenizer's size with them; its chat template writes images."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    named = _NAMED_TOKENS.get(family)
    tokens = tuple(named.values()) if named else _TILE_TOKENS if family in _TILE_VALUES else _QWEN_TOKENS
    if named:
        tokenizer = AutoTokenizer.from_pretrained(folder, extra_special_tokens=named)
    else:
        tokenizer.add_special_tokens({"additional_special_tokens": list(tokens)})
    tokenizer.chat_template = _CHAT_TEMPLATE.replace(
        "IMAGE", _IMAGE_TEXTS.get(family, "".join(_QWEN_TOKENS[:3]))
    )
    tokenizer.save_pretrained(folder)
    vocabulary = tokenizer.get_vocab()
    return {token: vocabulary[token] for token in tokens}, len(tokenizer)


def _qwen(family: str, text: dict[str, Any], vision: dict[str, Any], ids: dict[str, int]) -> dict[str, Any]:
    half = text["head_dim"] // 2
    sections = [half - 2 * (3 * half // 8), 3 * half // 8, 3 * half // 8]
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": sections}
    if family == "qwen3_vl":
        rope["mrope_interleaved"] = True  # transformers does so without it, serving libraries do not
    hidden = {"intermediate_size": 2 * vision["hidden_size"], "out_hidden_size": text["hidden_size"]}
    own: dict[str, dict[str, Any]] = {
        "qwen2_vl": {
            "embed_dim": vision["hidden_size"],
            "hidden_size": text["hidden_size"],
            "mlp_ratio": 2,
        },
        "qwen2_5_vl": {**hidden, "window_size": 8 * vision["patch_size"], "fullatt_block_indexes": [1]},
        "qwen3_vl": {**hidden, "num_position_embeddings": 64, "deepstack_visual_indexes": [0, 1]},
    }
    return {
        "text_config": {**text, "rope_parameters": rope},
        "vision_config": {**vision, "spatial_merge_size": 2, "temporal_patch_size": 2, **own[family]},
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
    }


def _idefics(text: dict[str, Any], vision: dict[str, Any], ids: dict[str, int]) -> dict[str, Any]:
    return {
        "text_config": {**text, "model_type": "llama"},
        "vision_config": _square_encoder(vision),
        "scale_factor": 2,
        "image_token_id": ids["<image>"],
        "pad_token_id": text["pad_token_id"],
    }


def _gemma3(text: dict[str, Any], vision: dict[str, Any], ids: dict[str, int]) -> dict[str, Any]:
    window = {"sliding_window": 16, "query_pre_attn_scalar": text["head_dim"]}
    kinds = ["sliding_attention", "full_attention"] * text["num_hidden_layers"]
    return {
        "text_config": {**text, **window, "layer_types": kinds[: text["num_hidden_layers"]]},
        "vision_config": {**_square_encoder(vision), "vision_use_head": False},
        "mm_tokens_per_image": 4,
        "boi_token_index": ids["<start_of_image>"],
        "image_token_index": ids["<image_soft_token>"],
        "eoi_token_index": ids["<end_of_image>"],
    }


def _internvl(text: dict[str, Any], vision: dict[str, Any], ids: dict[str, int]) -> dict[str, Any]:
    return {
        "text_config": {**text, "model_type": "qwen2"},
        "vision_config": _square_encoder(vision),
        "image_seq_length": 4,
        "image_token_id": ids["<IMG_CONTEXT>"],
    }


def _square_encoder(vision: dict[str, Any]) -> dict[str, Any]:
    """An encoder of tiles of four by four patches."""
    return {
        "image_size": 4 * vision["patch_size"],
        "patch_size": vision["patch_size"],
        "hidden_size": vision["hidden_size"],
        "intermediate_size": 2 * vision["hidden_size"],
        "num_hidden_layers": vision["depth"],
        "num_attention_heads": vision["num_heads"],
    }


_TILE_VALUES = {"idefics3": _idefics, "smolvlm": _idefics, "gemma3": _gemma3, "internvl": _internvl}
