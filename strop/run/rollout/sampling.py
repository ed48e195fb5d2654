"""Conversion of a run file's sampling section to an engine's sampling parameters."""

from __future__ import annotations

from strop.config.schema.rollout import SamplingConfig
from strop.types import SamplingParams


def sampling_params(section: SamplingConfig, max_response_tokens: int) -> SamplingParams:
    """Sampling parameters of a section."""
    return SamplingParams(
        temperature=section.temperature,
        top_p=section.top_p,
        top_k=section.top_k,
        min_p=section.min_p,
        repetition_penalty=section.repetition_penalty,
        max_tokens=max_response_tokens,
        min_tokens=section.min_response_tokens,
        stop=section.stop,
        stop_token_ids=section.stop_token_ids,
        ignore_eos=section.ignore_eos,
    )
