"""Cut of a completion at a stop that its engine did not look for."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from strop.inference.native.pending_request import StopStringMatcher
from strop.types import Completion


def cut_at_stop(
    completion: Completion,
    min_tokens: int,
    matcher: StopStringMatcher,
    *,
    tokens: Collection[int] = (),
    strings: tuple[str, ...] = (),
) -> Completion:
    """The completion up to the first of these stop tokens or stop strings after `min_tokens`."""
    sampled = completion.token_ids.tolist()
    for length in range(min_tokens + 1, len(sampled) + 1):
        stopped = sampled[length - 1] in tokens
        if strings and not stopped:
            window = sampled[max(0, length - matcher.window(strings)) : length]
            stopped = matcher.completes_stop(window, strings)
        if stopped:
            return _first(completion, length)
    return completion


def _first(completion: Completion, length: int) -> Completion:
    policy, versions = completion.policy_logprobs, completion.token_versions
    return replace(
        completion,
        token_ids=completion.token_ids[:length],
        sampler_logprobs=completion.sampler_logprobs[:length],
        policy_logprobs=None if policy is None else policy[:length],
        finish_reason="stop",
        token_versions=None if versions is None else versions[:length],
    )
