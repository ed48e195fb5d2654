"""Properties of model families that decide how a model is run: attention, rotary positions, kinds of layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from transformers import PretrainedConfig

from strop.errors import ModelError

_BATCH_DEPENDENT_ROPE = {"longrope": "original_max_position_embeddings", "dynamic": None}
"""Rotary embeddings whose frequencies change with the longest sequence of a batch, once that is longer than this
entry of the rotary parameters; None for the model's `max_position_embeddings`."""
_PADDABLE_LAYERS = frozenset(("full_attention", "sliding_attention", "chunked_attention"))
"""Kinds of layers that have a mask for padding."""


def attention_implementation(config: PretrainedConfig) -> str | None:
    """The attention of transformers to use; None for its default, SDPA, which ignores a softcap (Gemma 2)."""
    text = config.get_text_config()
    return "eager" if getattr(text, "attn_logit_softcapping", None) else None


def has_recurrent_layers(config: PretrainedConfig) -> bool:
    """Whether some layers keep a state instead of keys and values, so that their prompts must not be padded."""
    kinds = getattr(config.get_text_config(), "layer_types", None) or ()
    return not _PADDABLE_LAYERS.issuperset(kinds)


def rope_token_limit(config: PretrainedConfig) -> tuple[int, str] | None:
    """Length up to which a sequence has the same rotary embeddings in every batch, and their type; None if that is
    every length."""
    text = config.get_text_config()
    limits = []
    for parameters in _rope_parameters(text):
        kind = parameters.get("rope_type", "default")
        if kind in _BATCH_DEPENDENT_ROPE:
            key = _BATCH_DEPENDENT_ROPE[kind]
            limit = parameters.get(key) if key else None
            limits.append((int(limit or text.max_position_embeddings), kind))
    return min(limits, default=None)


def check_rope_limit(config: PretrainedConfig, tokens: int) -> None:
    """Raise `ModelError` if rotary embeddings of a sequence of this length depend on its batch."""
    limit = rope_token_limit(config)
    if limit is None or tokens <= limit[0]:
        return
    raise ModelError(
        f"The model's rotary embeddings (rope_type {limit[1]!r}) depend on the longest sequence of a batch where that "
        f"has more than {limit[0]} tokens, so that log-probs would depend on the batch; sequences of this run may "
        f"have {tokens}. Write a `rollout.max_sequence_tokens` of at most {limit[0]} (the sum of "
        "data.max_prompt_tokens and data.max_response_tokens by default), or rotary embeddings that do not change, "
        "such as model.override.rope_parameters.rope_type: yarn."
    )


def _rope_parameters(text: Any) -> Iterator[Mapping[str, Any]]:
    """The rotary parameters of a model: one mapping, or one for each kind of layer."""
    parameters = getattr(text, "rope_parameters", None) or {}
    nested = [value for value in parameters.values() if isinstance(value, Mapping)]
    yield from nested or [parameters]
