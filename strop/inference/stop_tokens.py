"""Tokens that end a completion."""

from __future__ import annotations

from transformers import GenerationConfig, PretrainedConfig, PreTrainedTokenizerBase

from strop.types import SamplingParams


def eos_token_ids(
    config: PretrainedConfig,
    generation_config: GenerationConfig | None,
    tokenizer: PreTrainedTokenizerBase,
) -> frozenset[int]:
    """End tokens of the generation config (of the model config if there is none) and of the tokenizer."""
    source = config if generation_config is None else generation_config
    given = getattr(source, "eos_token_id", None)
    ids = list(given) if isinstance(given, list | tuple) else [given]
    return frozenset(int(token) for token in (*ids, tokenizer.eos_token_id) if token is not None)


def effective_stop_tokens(sampling: SamplingParams, eos_ids: frozenset[int]) -> frozenset[int]:
    """Tokens that end a completion with these sampling parameters."""
    stops = frozenset(sampling.stop_token_ids)
    return stops if sampling.ignore_eos else stops | eos_ids
