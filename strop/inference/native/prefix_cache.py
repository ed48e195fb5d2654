"""Keys and values of ended requests, for the next turns of their conversations, whose prompts begin alike."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import torch

from strop.inference.native.model.runner import Prompt
from strop.types import IntArray, SampleRequest


@dataclass(frozen=True, slots=True)
class CachedTokens:
    """Tokens of a conversation whose keys and values are known."""

    token_ids: IntArray
    """[T]"""
    keys_values: torch.Tensor
    """[layers, 2, kv_heads, T, head_dim]"""

    def common_prefix(self, prompt: IntArray) -> torch.Tensor | None:
        """[layers, 2, kv_heads, t, head_dim] Keys and values of the tokens with which a prompt [P] begins; None if
        there is no such token. Its last token goes through the model in any case, for its logits."""
        compared = min(len(self.token_ids), len(prompt) - 1)
        differing = np.flatnonzero(self.token_ids[:compared] != prompt[:compared])
        common = int(differing[0]) if len(differing) else compared
        return self.keys_values[..., :common, :] if common else None


class PrefixCache:
    """The latest tokens of each conversation, by the id of its requests."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, CachedTokens] = OrderedDict()
        """The oldest is first."""
        self.tokens = 0
        """Number of tokens of all conversations."""

    def put(self, conversation: str, cached: CachedTokens) -> None:
        """Keep the tokens of a conversation in place of those that it had."""
        self._drop(conversation)
        self._kept[conversation] = cached
        self.tokens += len(cached.token_ids)

    def take_prompt(self, request: SampleRequest) -> Prompt:
        """The prompt of a request, with the keys and values of its conversation, which are kept no longer."""
        if request.prompt_logprobs:  # for which all of the prompt goes through the model
            return Prompt(request.prompt_ids, request.media, request.top_logprobs)
        cached = self._drop(request.id)
        prefix = None if cached is None else cached.common_prefix(request.prompt_ids)
        return Prompt(request.prompt_ids, request.media, prefix=prefix)

    def shrink(self, tokens: int) -> None:
        """Drop the oldest conversations until they have at most this number of tokens."""
        while self._kept and self.tokens > tokens:
            self._drop(next(iter(self._kept)))

    def clear(self) -> None:
        """Drop all conversations."""
        self._kept.clear()
        self.tokens = 0

    def _drop(self, conversation: str) -> CachedTokens | None:
        cached = self._kept.pop(conversation, None)
        if cached is not None:
            self.tokens -= len(cached.token_ids)
        return cached
