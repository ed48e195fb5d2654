"""`exact`: the answer, character for character."""

from __future__ import annotations

from typing import Any, Literal


def exact_reward(
    completion: str, answer: Any, *, part: Literal["text", "last_line"] = "text", case_sensitive: bool = True
) -> float:
    """1 when the completion, without space around it, is the answer, else 0.

    `part="last_line"` compares the last line that is not empty. Of a list of answers any will do.
    """
    found = completion.strip()
    if part == "last_line":
        found = found.rsplit("\n", 1)[-1].strip()
    answers = answer if isinstance(answer, list | tuple) else [answer]
    truths = [str(truth).strip() for truth in answers]
    if not case_sensitive:
        found, truths = found.casefold(), [truth.casefold() for truth in truths]
    return float(found in truths)
