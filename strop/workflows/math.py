"""A problem of mathematics, with a word on how the answer is to be written."""

from __future__ import annotations

from typing import Literal

from strop.types import Task
from strop.workflows.chat import Chat

SYSTEM = {
    "boxed": "Solve the problem step by step. Put your final answer within \\boxed{}.",
    "tags": "Reason about the problem first, inside <think> and </think>. Then write the final answer, "
    "within \\boxed{}, inside <answer> and </answer>.",
}


class MathProblem:
    """One answer to the task's prompt, below a system message.

    Where the run file names no reward it is `math`, and with `style: tags` a tenth of `format` beside.
    """

    def __init__(self, style: Literal["boxed", "tags"] = "boxed", system: str | None = None) -> None:
        """`system` stands in place of the style's own; a task that has a system message keeps that."""
        self._system = SYSTEM[style] if system is None else system

    async def run(self, task: Task, chat: Chat) -> None:
        """One answer, scored by the run's reward."""
        if all(message["role"] != "system" for message in task.messages):
            chat = chat.start([{"role": "system", "content": self._system}, *task.messages], task.tools)
        await chat.reply()
