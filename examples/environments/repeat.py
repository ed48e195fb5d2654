"""A verifiers environment of two turns: say a digit, and say it again."""

from __future__ import annotations

import verifiers as vf
from datasets import Dataset


class TwoTurns(vf.MultiTurnEnv):  # type: ignore[misc]
    """Asks a second time after the first reply."""

    async def env_response(
        self, messages: vf.Messages, state: vf.State, **kwargs: object
    ) -> list[dict[str, str]]:
        """The second question, which is the first one again."""
        return [vf.UserMessage(content=messages[0]["content"])]


def share_right(completion: vf.Messages, answer: str) -> float:
    """Fraction of the replies that are the digit."""
    replies = [message["content"].strip() for message in completion if message["role"] == "assistant"]
    return sum(reply == answer for reply in replies) / max(1, len(replies))


def load_environment(digits: int = 2) -> vf.Environment:
    """The environment, with one task per digit."""
    rows = [{"question": f"Say {digit}.", "answer": str(digit)} for digit in range(digits)]
    rubric = vf.Rubric(funcs=[share_right])
    return TwoTurns(dataset=Dataset.from_list(rows * 8), rubric=rubric, max_turns=2)
