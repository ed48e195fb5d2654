"""`single_turn` and `math`: one response to the task's prompt."""

from __future__ import annotations

from typing import Literal

from strop.types import Task
from strop.workflows.chat import Chat

_SYSTEM_PROMPTS = {
    "boxed": "Solve the problem step by step. Put your final answer within \\boxed{}.",
    "tags": "Reason about the problem first, inside <think> and </think>. Then write the final answer, "
    "within \\boxed{}, inside <answer> and </answer>.",
}


class SingleTurnWorkflow:
    """Samples one response to the task's prompt."""

    multi_turn = False

    async def run(self, task: Task, chat: Chat) -> None:
        """Sample one response, scored by the run's reward."""
        await chat.reply()


class MathWorkflow:
    """One response to the task's prompt, preceded by a system message.

    If the run file has no reward, the reward is `math`, and with `style: tags` also a tenth of `format`.
    """

    multi_turn = False

    def __init__(self, style: Literal["boxed", "tags"] = "boxed", system: str | None = None) -> None:
        """`system` replaces the style's system message; a task that has a system message keeps it."""
        self._system = _SYSTEM_PROMPTS[style] if system is None else system

    async def run(self, task: Task, chat: Chat) -> None:
        """Sample one response, scored by the run's reward."""
        if all(message["role"] != "system" for message in task.messages):
            chat = chat.start([{"role": "system", "content": self._system}, *task.messages], task.tools)
        await chat.reply()
