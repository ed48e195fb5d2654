"""A tool and a simulated user, as verl's users write them: guess a digit, with hints."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from verl.interactions.base import BaseInteraction
from verl.tools.base_tool import BaseTool
from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse


class ParityTool(BaseTool):
    """Tells whether the digit is even; each question costs a little."""

    def __init__(self, config: dict[str, Any], tool_schema: OpenAIFunctionToolSchema) -> None:
        super().__init__(config, tool_schema)
        self.digits: dict[str, int] = {}
        self.questions: dict[str, int] = {}

    async def create(
        self, instance_id: str | None = None, digit: str = "0", **kwargs: Any
    ) -> tuple[str, ToolResponse]:
        instance_id = instance_id or str(uuid4())
        self.digits[instance_id], self.questions[instance_id] = int(digit), 0
        return instance_id, ToolResponse()

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[ToolResponse, float, dict[str, Any]]:
        self.questions[instance_id] += 1
        answer = "odd" if self.digits[instance_id] % 2 else "even"
        return ToolResponse(text=f"It is {answer}."), -self.config["cost"], {}

    async def calc_reward(self, instance_id: str, **kwargs: Any) -> float:
        return -self.config["cost"] * self.questions[instance_id]

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        del self.digits[instance_id], self.questions[instance_id]


class GuessInteraction(BaseInteraction):
    """Thinks of a digit, and answers a guess with "Higher." or "Lower."."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self.digits: dict[str, int] = {}

    async def start_interaction(self, instance_id: str | None = None, digit: str = "0", **kwargs: Any) -> str:
        instance_id = instance_id or str(uuid4())
        self.digits[instance_id] = int(digit)
        return instance_id

    async def generate_response(
        self, instance_id: str, messages: list[dict[str, Any]], **kwargs: Any
    ) -> tuple[bool, str, float, dict[str, Any]]:
        digits = [letter for letter in messages[-1]["content"] if letter in "0123456789"]
        if not digits:
            return False, "Say a digit.", 0.0, {}
        guess = int(digits[-1])
        if guess == self.digits[instance_id]:
            return True, "Right.", 1.0, {}
        return False, "Higher." if guess < self.digits[instance_id] else "Lower.", 0.25, {}

    async def finalize_interaction(self, instance_id: str, **kwargs: Any) -> None:
        del self.digits[instance_id]
