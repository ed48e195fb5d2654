"""Small random models for prompts with images, for examples, tests and benchmarks."""

from __future__ import annotations

import json
from collections.abc import Iterable
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
_TILE_TOKENS = ("<image>", "<fake_token_around_image>", "<global-img>")
_MAX_TILE_ROWS = 3


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

    `family` is one of `qwen2_vl`, `qwen2_5_vl`, `qwen3_vl` and `smolvlm`. Two by two patches become one token.
    """
    import torch
    from transformers import AutoConfig, AutoModelForImageTextToText

    from strop.models.loading import silence_transformers

    folder.mkdir(parents=True, exist_ok=True)
    make_tokenizer(folder, corpus, vocab_size)
    ids, size = _add_image_tokens(folder, family)
    text = decoder_values(size, hidden_size, layers, heads, kv_heads, max_tokens=4096)
    text["tie_word_embeddings"] = True
    vision = {"patch_size": patch_size, "hidden_size": vision_size, "num_heads": 4, "depth": vision_layers}
    values = _smolvlm(text, vision, ids) if family == "smolvlm" else _qwen(family, text, vision, ids)
    config = AutoConfig.for_model(family, **values, tie_word_embeddings=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForImageTextToText.from_config(config, dtype=torch.float32)  # type: ignore[no-untyped-call]
    model.generation_config.eos_token_id = text["eos_token_id"]
    model.generation_config.pad_token_id = text["pad_token_id"]
    with silence_transformers():
        model.save_pretrained(folder)
    processor: dict[str, Any] = {"patch_size": patch_size, "temporal_patch_size": 2, "merge_size": 2}
    processor |= {"min_pixels": min_pixels, "max_pixels": max_pixels}
    if family == "smolvlm":
        tile = values["vision_config"]["image_size"]
        processor = {
            "size": {"longest_edge": 2 * tile},
            "max_image_size": {"longest_edge": tile},
            "do_image_splitting": True,
        }
    kind = "SmolVLMImageProcessor" if family == "smolvlm" else "Qwen2VLImageProcessor"
    file = folder / "preprocessor_config.json"
    file.write_text(json.dumps({"image_processor_type": kind, **processor}, indent=2), encoding="utf-8")
    return folder


def _add_image_tokens(folder: Path, family: str) -> tuple[dict[str, int], int]:
    """Ids of the family's special tokens, and the tokenizer's size with them; its chat template writes images."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    if family == "smolvlm":
        span = range(1, _MAX_TILE_ROWS + 1)
        tokens = (*_TILE_TOKENS, *(f"<row_{row}_col_{column}>" for row in span for column in span))
        image = "<image>"
    else:
        tokens, image = _QWEN_TOKENS, "".join(_QWEN_TOKENS[:3])
    tokenizer.add_special_tokens({"additional_special_tokens": list(tokens)})
    tokenizer.chat_template = _CHAT_TEMPLATE.replace("IMAGE", image)
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


def _smolvlm(text: dict[str, Any], vision: dict[str, Any], ids: dict[str, int]) -> dict[str, Any]:
    return {
        "text_config": {**text, "model_type": "llama"},
        "vision_config": {
            "image_size": 4 * vision["patch_size"],
            "patch_size": vision["patch_size"],
            "hidden_size": vision["hidden_size"],
            "intermediate_size": 2 * vision["hidden_size"],
            "num_hidden_layers": vision["depth"],
            "num_attention_heads": vision["num_heads"],
        },
        "scale_factor": 2,
        "image_token_id": ids["<image>"],
        "pad_token_id": text["pad_token_id"],
    }
