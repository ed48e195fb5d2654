"""`exact`: the completion equals the answer, character for character."""

from __future__ import annotations

from typing import Any, Literal

from strop.rewards.graders import zero_beyond_limits


@zero_beyond_limits
def exact_reward(
    completion: str, answer: Any, *, part: Literal["text", "last_line"] = "text", case_sensitive: bool = True
) -> float:
    """1 if the completion, without surrounding white space, equals the answer, else 0.

    `part="last_line"` compares the last non-empty line. A list of answers matches if any of them does.
    """
    found = completion.strip()
    if part == "last_line":
        found = found.rsplit("\n", 1)[-1].strip()
    answers = answer if isinstance(answer, list | tuple) else [answer]
    expected = [str(each).strip() for each in answers]
    if not case_sensitive:
        found, expected = found.casefold(), [each.casefold() for each in expected]
    return float(found in expected)
