"""`math_in_text`: the completion has the task's mathematical answer anywhere in its text."""

from __future__ import annotations

from typing import Any

from strop.rewards.builtin.math import math_reward


def math_in_text_reward(completion: str, answer: Any) -> float:
    """1 if the end of the completion states the task's answer, in any form, else 0.

    The role of Trinity-RFT's accuracy reward: `math` with the method `flexible`. Raises ValueError as `math` does.
    """
    return math_reward(completion, answer, method="flexible")
