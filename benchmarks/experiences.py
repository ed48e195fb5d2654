"""Experiences of the benchmarks, whose tokens no model has sampled."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from strop.types import Experience


def unsampled(
    group: int, index: int, tokens: ArrayLike, prompt_tokens: int, reward: float = 1.0
) -> Experience:
    """Experience of one turn: a prompt of `prompt_tokens` of the tokens, and a response with log-probs of zero."""
    token_ids = np.asarray(tokens, dtype=np.int32)
    zeros = np.zeros(len(token_ids), dtype=np.float32)
    return Experience(
        id=f"{group}-{index}",
        task_id=str(group),
        group=str(group),
        index=index,
        turn=0,
        token_ids=token_ids,
        loss_mask=np.arange(len(token_ids)) >= prompt_tokens,
        sampler_logprobs=zeros,
        policy_logprobs=zeros,
        reward=reward,
        status="ok",
        temperature=1.0,
        versions=(0,),
    )
