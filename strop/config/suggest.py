"""Did you mean ...?"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def closest(word: str, options: Iterable[str]) -> str | None:
    """The option that the word is most likely a slip of, if there is one."""
    lowered = {option.lower(): option for option in options}
    found = difflib.get_close_matches(word.lower(), lowered, n=1, cutoff=0.7)
    return lowered[found[0]] if found else None


def did_you_mean(word: str, options: Iterable[str]) -> str:
    """`; did you mean 'x'?`, or nothing."""
    found = closest(word, options)
    return f"; did you mean {found!r}?" if found else ""
