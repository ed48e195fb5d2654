"""Tokens that end a completion."""

from __future__ import annotations

from strop.types import SamplingParams


def effective_stop_tokens(sampling: SamplingParams, eos_ids: frozenset[int]) -> frozenset[int]:
    """Tokens that end a completion with these sampling parameters."""
    stops = frozenset(sampling.stop_token_ids)
    return stops if sampling.ignore_eos else stops | eos_ids
