"""Counterpart of `verl.interactions.gsm8k_interaction.Gsm8kInteraction`: tells the model whether its answer is
right."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from strop.compat.verl.interface.base_interaction import BaseInteraction
from strop.rewards.builtin.gsm8k import gsm8k_reward

_RIGHT = "Your response is correct!"
_WRONG = "Your response is incorrect! You need to reflect on your answer and try again."


class Gsm8kInteraction(BaseInteraction):
    """Scores each reply by the number after `####`; the conversation ends at the right one."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self._answers: dict[str, Any] = {}

    async def start_interaction(
        self, instance_id: str | None = None, ground_truth: Any = None, **kwargs: Any
    ) -> str:
        """`ground_truth` is one of the task's `interaction_kwargs`."""
        instance_id = instance_id or str(uuid4())
        if ground_truth is None:
            raise ValueError("the task has no extra_info.interaction_kwargs.ground_truth")
        self._answers[instance_id] = ground_truth
        return instance_id

    async def generate_response(
        self, instance_id: str, messages: list[dict[str, Any]], **kwargs: Any
    ) -> tuple[bool, str, float | None, dict[str, Any]]:
        """Score the last reply."""
        replies = (m["content"] for m in reversed(messages) if m["role"] == "assistant")
        score = float(gsm8k_reward(next(replies, ""), self._answers[instance_id]))
        return score == 1.0, _RIGHT if score == 1.0 else _WRONG, score, {}

    async def finalize_interaction(self, instance_id: str | None = None, **kwargs: Any) -> None:
        """Forget the instance."""
        self._answers.pop(instance_id or "", None)
