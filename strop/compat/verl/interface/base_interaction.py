"""`verl.interactions.base`: base class of simulated users."""

from __future__ import annotations

from typing import Any
from uuid import uuid4


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
