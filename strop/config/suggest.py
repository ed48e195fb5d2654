"""Suggestions for misspelled names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def closest(word: str, options: Iterable[str]) -> str | None:
    """Return the option that is most similar to a misspelled word; None if none is similar."""
    lowered = {option.lower(): option for option in options}
    found = difflib.get_close_matches(word.lower(), lowered, n=1, cutoff=0.7)
    return lowered[found[0]] if found else None


def did_you_mean(word: str, options: Iterable[str]) -> str:
    """Return `; did you mean 'x'?`, or an empty text."""
    found = closest(word, options)
    return f"; did you mean {found!r}?" if found else ""
