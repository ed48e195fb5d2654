"""The end of a trained turn: one end token, where the template or the text writes it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TurnEnd:
    """End of a turn in a rendered conversation."""

    stop: int
    """End of what is trained on, after the turn's end token."""
    resume: int
    """Start of the text that follows: behind `stop`, and behind repetitions of the end token, which are removed."""
    has_end_token: bool


class TurnEnds:
    """Finds the end tokens of turns in rendered text."""

    def __init__(self, end_texts: Sequence[str], special_texts: Iterable[str]) -> None:
        """`end_texts` are the tokens at which sampling stops, of which the first one is written where a text has none;
        `special_texts` are the tokenizer's special tokens, behind which templates write no more than white space."""
        self._default = end_texts[0] if end_texts else ""
        self._special = tuple(special_texts)
        either = "|".join(sorted(map(re.escape, end_texts), key=len, reverse=True)) or r"(?!)"
        # Sampling stops at the first of several end tokens.
        self._repeated = re.compile(rf"(?P<end>{either})(?:\s*(?:{either}))*\s*")
        self._next = re.compile(rf"\s*(?P<end>{either})")

    def of_turn(self, text: str, start: int, stop: int) -> TurnEnd:
        """The end of the turn at `text[start:stop]`.

        The end token is the one that the turn ends with; or the one that follows, which is the header of the next turn
        in templates without an end mark; or another special token that the turn ends with.
        """
        found = self._last(text, start, stop) or self._next.match(text, stop)
        if found is not None:
            repeated = re.compile(rf"(?:\s*{re.escape(found['end'])})*")
            rest = repeated.match(text, found.end("end"))
            assert rest is not None
            return TurnEnd(found.end("end"), rest.end(), True)
        trimmed = len(text[:stop].rstrip())
        if trimmed > start and text[:trimmed].endswith(self._special):
            return TurnEnd(trimmed, trimmed, False)
        return TurnEnd(stop, stop, False)

    def at_start(self, text: str) -> str:
        """The end token with which a text begins, with the white space before it; empty if it begins with none."""
        found = self._next.match(text)
        return "" if found is None else found.group()

    def closed(self, text: str) -> str:
        """A text without a template up to its end token; one is added where it has none."""
        found = self._last(text, 0, len(text))
        return text + self._default if found is None else text[: found.end("end")]

    def _last(self, text: str, start: int, stop: int) -> re.Match[str] | None:
        """The end tokens that a text ends with; `end` is the first of them."""
        return next((run for run in self._repeated.finditer(text, start, stop) if run.end() == stop), None)
