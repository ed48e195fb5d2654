"""Texts that end an answer, found across the borders of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from transformers import PreTrainedTokenizerBase

UNFINISHED = "\ufffd"
"""What a tokenizer writes for bytes that are not yet a whole character."""
MARGIN_TOKENS = 8
"""Tokens decoded before the longest possible match: the first ones may read differently out of context."""


class StopTexts:
    """Says whether the newest token completes a stop text. Special tokens count as their text."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size

    def completing_tokens(self, stops: Sequence[str]) -> list[int]:
        """Tokens that may bring the last character of one of the texts: all others need no closer look."""
        last = {stop[-1] for stop in stops}
        return [
            token for token, text in enumerate(self._texts) if UNFINISHED in text or not last.isdisjoint(text)
        ]

    def completed(self, tokens: Sequence[int], stops: Sequence[str]) -> bool:
        """Whether the last of `tokens` completes one of the texts in what they spell."""
        longest = max(len(stop.encode()) for stop in stops)
        window = list(tokens[-(longest + MARGIN_TOKENS) :])
        before = self._decode(window[:-1]).rstrip(UNFINISHED)
        now = self._decode(window)
        return any(now.find(stop, max(0, len(before) - len(stop) + 1)) >= 0 for stop in stops)

    @cached_property
    def _texts(self) -> list[str]:
        """[V] What each token adds to a text it does not begin."""
        anchor = self._tokenizer.encode("a", add_special_tokens=False)[:1]
        skip = len(self._decode(anchor))
        known = min(len(self._tokenizer), self._vocab_size)
        return [self._decode([*anchor, token])[skip:] for token in range(known)]

    def _decode(self, tokens: list[int]) -> str:
        text = self._tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        assert isinstance(text, str)
        return text
