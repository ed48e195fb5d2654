"""The content of answer tags."""

from __future__ import annotations

_OPEN, _CLOSE = "<answer>", "</answer>"


def last_tagged(text: str) -> str | None:
    """Content of the last `<answer>...</answer>`, from the first opening tag after the previous closing tag.

    None if there is none. The time is linear in the text, also with many opening tags.
    """
    end = text.rfind(_CLOSE)
    while end >= 0:
        before = text.rfind(_CLOSE, 0, end)
        start = text.find(_OPEN, max(before, 0), end)
        if start >= 0:
            return text[start + len(_OPEN) : end]
        end = before
    return None
