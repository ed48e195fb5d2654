"""From the run file's sampling section to what an engine takes."""

from __future__ import annotations

from strop.config.schema.rollout import Sampling as Section
from strop.types import Sampling


def sampling_of(section: Section, max_response_tokens: int) -> Sampling:
    """The draws that a section asks for."""
    return Sampling(
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
