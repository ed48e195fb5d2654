"""Texts that end an answer, found across the borders of tokens."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

UNFINISHED = "\ufffd"
"""What a tokenizer writes for bytes that are not yet a whole character."""
MARGIN_TOKENS = 8
"""Tokens decoded before the longest possible match: the first ones may read differently out of context."""


class StopTexts:
    """Says whether the newest token completes a stop text. Special tokens count as their text."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._additions: dict[int, str] = {}

    def completed(self, tokens: Sequence[int], stops: Sequence[str]) -> bool:
        """Whether the last of `tokens` completes one of the texts in what they spell."""
        addition = self._addition(tokens[-1])
        if UNFINISHED not in addition and not any(stop[-1] in addition for stop in stops):
            return False
        window = list(tokens[-self.window(stops) :])
        before = self._decode(window[:-1]).rstrip(UNFINISHED)
        now = self._decode(window)
        return any(now.find(stop, max(0, len(before) - len(stop) + 1)) >= 0 for stop in stops)

    def window(self, stops: Sequence[str]) -> int:
        """How many of the last tokens can matter: a token spells a byte at least."""
        return max(len(stop.encode()) for stop in stops) + MARGIN_TOKENS

    def _addition(self, token: int) -> str:
        """What a token adds to a text that it does not begin."""
        if token not in self._additions:
            anchor = self._tokenizer.encode("a", add_special_tokens=False)[:1]
            self._additions[token] = self._decode([*anchor, token])[len(self._decode(anchor)) :]
        return self._additions[token]

    def _decode(self, tokens: list[int]) -> str:
        text = self._tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        assert isinstance(text, str)
        return text
