"""`single_turn`: one response to the task's prompt."""

from __future__ import annotations

from strop.types import Task
from strop.workflows.chat import Chat


class SingleTurnWorkflow:
    """Samples one response to the task's prompt."""

    async def run(self, task: Task, chat: Chat) -> None:
        """Sample one response, scored by the run's reward."""
        await chat.reply()
