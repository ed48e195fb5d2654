"""Parts of a completion that all engines compute: its stops, and the versions of the weights that sampled it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

import numpy as np
from transformers import PreTrainedTokenizerBase

from strop.types import Completion, IntArray, SamplingParams

REPLACEMENT_CHARACTER = "\ufffd"
"""Character that a tokenizer writes for the bytes of an incomplete character."""
CONTEXT_TOKENS = 8
"""Tokens decoded before the longest possible match; out of context the first ones may decode differently."""


def effective_stop_tokens(sampling: SamplingParams, eos_ids: frozenset[int]) -> frozenset[int]:
    """Tokens that end a completion with these sampling parameters."""
    stops = frozenset(sampling.stop_token_ids)
    return stops if sampling.ignore_eos else stops | eos_ids


class StopStringMatcher:
    """Finds stop strings across token boundaries; special tokens count as their text."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._added_text: dict[int, str] = {}

    def completes_stop(self, tokens: Sequence[int], stops: Sequence[str]) -> bool:
        """Whether the last of `tokens` completes one of the stop strings in the decoded text."""
        added = self._text_added_by(tokens[-1])
        if REPLACEMENT_CHARACTER not in added and not any(stop[-1] in added for stop in stops):
            return False
        window = list(tokens[-self.window(stops) :])
        before = self._decode(window[:-1]).rstrip(REPLACEMENT_CHARACTER)
        now = self._decode(window)
        return any(now.find(stop, max(0, len(before) - len(stop) + 1)) >= 0 for stop in stops)

    def window(self, stops: Sequence[str]) -> int:
        """Number of trailing tokens to decode: each token adds one byte or more."""
        return max(len(stop.encode()) for stop in stops) + CONTEXT_TOKENS

    def _text_added_by(self, token: int) -> str:
        """Text that a token adds after another token."""
        if token not in self._added_text:
            anchor = self._tokenizer.encode("a", add_special_tokens=False)[:1]
            self._added_text[token] = self._decode([*anchor, token])[len(self._decode(anchor)) :]
        return self._added_text[token]

    def _decode(self, tokens: list[int]) -> str:
        text = self._tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        assert isinstance(text, str)
        return text


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
