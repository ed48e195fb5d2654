"""`verl.tools.base_tool`: base class of tools with state."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from strop.compat.verl.interface.schemas import OpenAIFunctionToolSchema, ToolResponse

__all__ = ["BaseTool", "OpenAIFunctionToolSchema", "ToolResponse"]


class BaseTool:
    """A tool of which each rollout has an instance with an id; one object serves all rollouts."""

    def __init__(self, config: dict[str, Any], tool_schema: OpenAIFunctionToolSchema | None) -> None:
        """`config` and `tool_schema` are those of the configuration file; a class without the latter defines
        `get_openai_tool_schema`."""
        self.config = config
        self.tool_schema = tool_schema or self.get_openai_tool_schema()
        if self.tool_schema is None:
            raise ValueError(
                f"{type(self).__name__} has no schema: write tool_schema in the configuration file, or define "
                "get_openai_tool_schema in the class"
            )
        self.name = self.tool_schema.function.name

    def get_openai_tool_schema(self) -> OpenAIFunctionToolSchema | None:
        """Description of the tool."""
        return getattr(self, "tool_schema", None)

    async def create(self, instance_id: str | None = None, **kwargs: Any) -> tuple[str, ToolResponse]:
        """Create an instance; returns its id."""
        return instance_id or str(uuid4()), ToolResponse()

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[ToolResponse, float | None, dict[str, Any]]:
        """Execute a call; returns the response, the reward of the call, and metrics."""
        raise NotImplementedError(f"{type(self).__name__} does not define execute")

    async def calc_reward(self, instance_id: str, **kwargs: Any) -> float:
        """Reward of the instance, after the rollout."""
        return 0.0

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        """Release the instance."""
