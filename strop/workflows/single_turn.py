"""One prompt, one answer."""

from __future__ import annotations

from strop.types import Task
from strop.workflows.chat import Chat


class SingleTurn:
    """The model sees the task's prompt once and answers once."""

    async def run(self, task: Task, chat: Chat) -> None:
        """One answer, scored by the run's reward."""
        await chat.reply()
