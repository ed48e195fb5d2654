"""Counterpart of `verl.tools.gsm8k_tool.Gsm8kTool`: scores the answer that the model submits."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from strop.compat.verl.interface.base_tool import BaseTool
from strop.compat.verl.interface.schemas import OpenAIFunctionToolSchema, ToolResponse
from strop.rewards.builtin.gsm8k import gsm8k_reward

_NOT_IMPROVED = -0.05
"""Reward of a call whose answer is not better than the one before."""


class Gsm8kTool(BaseTool):
    """Scores the argument `answer` against the instance's `ground_truth`; its reward is the last score."""

    def __init__(self, config: dict[str, Any], tool_schema: OpenAIFunctionToolSchema | None) -> None:
        super().__init__(config, tool_schema)
        self._answers: dict[str, Any] = {}
        self._rewards: dict[str, float] = {}

    async def create(
        self, instance_id: str | None = None, ground_truth: Any = None, **kwargs: Any
    ) -> tuple[str, ToolResponse]:
        """`ground_truth` is an argument of its own, or one of `create_kwargs`."""
        instance_id = instance_id or str(uuid4())
        if ground_truth is None:
            ground_truth = (kwargs.get("create_kwargs") or {}).get("ground_truth")
        if ground_truth is None:
            raise ValueError("the task has no extra_info.tools_kwargs.<tool>.create_kwargs.ground_truth")
        self._answers[instance_id] = ground_truth
        self._rewards[instance_id] = 0.0
        return instance_id, ToolResponse()

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[ToolResponse, float | None, dict[str, Any]]:
        """Score an answer; a call that does not improve the score has a negative reward."""
        answer = str(parameters.get("answer", ""))
        reward = float(gsm8k_reward(answer, self._answers[instance_id], method="flexible"))
        improved = reward > self._rewards[instance_id]
        self._rewards[instance_id] = reward
        text = f"Current parsed answer={answer!r} reward={reward}"
        return ToolResponse(text=text), 0.0 if improved else _NOT_IMPROVED, {}

    async def calc_reward(self, instance_id: str, **kwargs: Any) -> float:
        """Score of the last answer; 0 before the first."""
        return self._rewards[instance_id]

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        """Forget the instance."""
        del self._answers[instance_id], self._rewards[instance_id]
