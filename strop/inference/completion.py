"""Parts of a completion that all engines compute: its stops, and the versions of the weights that sampled it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

import numpy as np

from strop.inference.native.pending_request import StopStringMatcher
from strop.types import Completion, IntArray, SamplingParams


def effective_stop_tokens(sampling: SamplingParams, eos_ids: frozenset[int]) -> frozenset[int]:
    """Tokens that end a completion with these sampling parameters."""
    stops = frozenset(sampling.stop_token_ids)
    return stops if sampling.ignore_eos else stops | eos_ids


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


def versions_of_spans(spans: Iterable[tuple[int, int, int]], tokens: int) -> IntArray:
    """[C] Version of each of `tokens` tokens, from spans of (version, start, end)."""
    versions = np.zeros(tokens, dtype=np.int32)
    for version, start, end in spans:
        versions[start:end] = version
    return versions


def split_versions(versions: IntArray, current: int) -> tuple[int, IntArray | None]:
    """`version` and `token_versions` of a completion, from the version of each token [C].

    `current` is the version of a completion without tokens.
    """
    if len(versions) == 0:
        return current, None
    first = int(versions[0])
    return first, None if (versions == first).all() else versions
