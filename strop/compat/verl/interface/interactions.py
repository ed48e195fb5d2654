"""Modules of `verl.interactions`: the base class of simulated users, and the counterpart of verl's own."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from strop.rewards.builtin.gsm8k import gsm8k_reward


class BaseInteraction:
    """A simulated user, which responds to replies without a tool call; one object serves all rollouts."""

    def __init__(self, config: dict[str, Any]) -> None:
        """`config` is that of the configuration file, with the interaction's `name`."""
        self.config = config
        self.name: str = config.get("name", "interaction_agent")

    async def start_interaction(self, instance_id: str | None = None, **kwargs: Any) -> str:
        """Create an instance with the `interaction_kwargs` of the task; returns its id."""
        return instance_id or str(uuid4())

    async def generate_response(
        self, instance_id: str, messages: list[dict[str, Any]], **kwargs: Any
    ) -> tuple[bool, str, float | None, dict[str, Any]]:
        """Respond to the conversation so far; returns whether it ends, the user's message, the score of the
        turn, and further values."""
        raise NotImplementedError(f"{type(self).__name__} does not define generate_response")

    async def calculate_score(self, instance_id: str | None = None, **kwargs: Any) -> float:
        """Score of the instance; for the class's own use."""
        return 0.0

    async def finalize_interaction(self, instance_id: str | None = None, **kwargs: Any) -> None:
        """Release the instance."""


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
