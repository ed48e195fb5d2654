"""Continuation of completions that were aborted: the next request, and the whole completion of its parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from strop.inference.native.pending_request import StopStringMatcher
from strop.inference.stop_cut import cut_at_stop
from strop.inference.token_versions import split_versions
from strop.seeds import derive_seed
from strop.types import Completion, FloatArray, IntArray, SampleRequest


def continuation(request: SampleRequest, tokens: IntArray) -> SampleRequest:
    """The request for the rest of a completion whose first tokens [C] are there.

    It has a seed of its own. Raises `ValueError` if no token remains to be sampled.
    """
    if len(tokens) == 0:
        return request
    sampling, count = request.sampling, len(tokens)
    if count >= sampling.max_tokens:
        raise ValueError(f"{count} of {sampling.max_tokens} tokens have been sampled")
    remaining = replace(
        sampling, max_tokens=sampling.max_tokens - count, min_tokens=max(0, sampling.min_tokens - count)
    )
    return replace(
        request,
        prompt_ids=np.concatenate([request.prompt_ids, tokens]),
        sampling=remaining,
        seed=derive_seed(request.seed, "continuation", count),
        messages=(),
        prompt_logprobs=False,
    )


def joined(request: SampleRequest, parts: Sequence[Completion], matcher: StopStringMatcher) -> Completion:
    """The completion of a request from its parts in order.

    It ends at a stop string that begins in one part and ends in the next, which no engine looks for.
    """
    *_, last = parts
    sampled = [part for part in parts if len(part.token_ids)] or [last]
    versions = np.concatenate([_versions(part) for part in sampled])
    version, token_versions = split_versions(versions, current=last.version)
    whole = Completion(
        token_ids=np.concatenate([part.token_ids for part in sampled]),
        sampler_logprobs=np.concatenate([part.sampler_logprobs for part in sampled]),
        policy_logprobs=_policy_logprobs(sampled),
        finish_reason=last.finish_reason,
        version=version,
        token_versions=token_versions,
        prompt_logprobs=_prompt_logprobs(parts),
    )
    sampling = request.sampling
    if len(sampled) == 1 or not sampling.stop:
        return whole
    return cut_at_stop(whole, sampling.min_tokens, matcher, strings=sampling.stop)


def _versions(part: Completion) -> IntArray:
    if part.token_versions is not None:
        return part.token_versions
    return np.full(len(part.token_ids), part.version, dtype=np.int32)


def _policy_logprobs(parts: Sequence[Completion]) -> FloatArray | None:
    given = [part.policy_logprobs for part in parts if part.policy_logprobs is not None]
    return np.concatenate(given) if len(given) == len(parts) else None


def _prompt_logprobs(parts: Sequence[Completion]) -> FloatArray | None:
    """Log-probs of the first part that has any: later parts have another prompt."""
    given = (part.prompt_logprobs for part in parts if part.prompt_logprobs is not None)
    return next(given, None)
