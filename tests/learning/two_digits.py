"""Workflow of two conversations, each a training sequence of its own."""

from __future__ import annotations

from strop.types import Task
from strop.workflows import Chat


async def two_digits(task: Task, chat: Chat) -> float:
    """Return the fraction of right answers to two questions."""
    first = await chat.reply()
    second = await chat.start([{"role": "user", "content": "another digit?"}]).reply()
    return 0.5 * (first.strip() == task.answer) + 0.5 * (second.strip() == task.answer)
