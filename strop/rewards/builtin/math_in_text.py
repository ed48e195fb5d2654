"""`math_in_text`: the completion has the task's mathematical answer anywhere in its text."""

from __future__ import annotations

from typing import Any

from strop.rewards.builtin.math import math_reward

_GSM8K = "####"


def math_in_text_reward(completion: str, answer: Any) -> float:
    """1 if math-verify finds the task's answer in the completion, in any form, else 0.

    This is Trinity-RFT's accuracy reward. An answer in the form of GSM8K counts from its last `####`. Raises
    ValueError if the answer cannot be parsed.
    """
    found = str(answer).rpartition(_GSM8K)[2].strip()
    return math_reward(
        completion, found.replace(",", "") if _GSM8K in str(answer) else found, method="flexible"
    )
