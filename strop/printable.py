"""Text to print: safe, without control characters; shortened; numbers with their noun."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

MAX_MESSAGE = 2000
"""Maximum number of characters of an error message."""
_HEAD, _TAIL = 1300, 600
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 without tab and newline, DEL, C1
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"  # line separators, and changes of the text direction
    "\ud800-\udfff]"  # surrogates, which UTF-8 cannot encode
)
_SURROGATE = re.compile("[\ud800-\udfff]")


def printable(text: str) -> str:
    r"""Escape control characters, which a terminal would execute, as `\x1b`. Tabs and newlines stay."""
    return _UNSAFE.sub(_escape, text)


def encodable(text: str) -> str:
    r"""Escape surrogates, which UTF-8 cannot encode, as `\ud800`; all other characters stay."""
    return _SURROGATE.sub(_escape, text)


def shorten(text: str, limit: int = MAX_MESSAGE) -> str:
    """Cut the middle of a text that is longer than `limit` characters."""
    if len(text) <= limit:
        return text
    head, tail = text[: limit * _HEAD // MAX_MESSAGE], text[-(limit * _TAIL // MAX_MESSAGE) :]
    return f"{head} ... ({len(text) - len(head) - len(tail)} characters cut) ... {tail}"


def counted(number: int, noun: str) -> str:
    """`1 step`, `2 steps`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def closest(word: str, options: Iterable[str]) -> str | None:
    """Return the option that is most similar to a misspelled word; None if none is similar."""
    lowered = {option.lower(): option for option in options}
    found = difflib.get_close_matches(word.lower(), lowered, n=1, cutoff=0.7)
    return lowered[found[0]] if found else None


def did_you_mean(word: str, options: Iterable[str]) -> str:
    """Return `; did you mean 'x'?`, or an empty text."""
    found = closest(word, options)
    return f"; did you mean {found!r}?" if found else ""
