"""Stop conditions of a batch of completions: tables of stop tokens, and stop strings."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import PreTrainedTokenizerBase

REPLACEMENT_CHARACTER = "\ufffd"
"""Character that a tokenizer writes for the bytes of an incomplete character."""
CONTEXT_TOKENS = 8
"""Tokens decoded before the longest possible match; out of context the first ones may decode differently."""


class TokenSetTable:
    """Sets of tokens as rows of one bool table [sets, V], so that one lookup serves rows with different sets."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self.table = torch.zeros(0, vocab_size, dtype=torch.bool, device=device)
        self._rows: dict[frozenset[int], int] = {}

    def row(self, tokens: frozenset[int]) -> int:
        """Row of this set in the table; tokens beyond the vocabulary are never sampled and are left out."""
        if tokens not in self._rows:
            new = self.table.new_zeros(1, self.table.shape[1])
            new[0, [token for token in tokens if 0 <= token < self.table.shape[1]]] = True
            self.table = torch.cat((self.table, new))
            self._rows[tokens] = len(self._rows)
        return self._rows[tokens]


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
