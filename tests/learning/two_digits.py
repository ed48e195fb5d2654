"""A workflow of two conversations, each a training sequence of its own, and an environment of two turns."""

from __future__ import annotations

from strop.types import Task
from strop.workflows import Chat


async def two_digits(task: Task, chat: Chat) -> float:
    """Return the fraction of right answers to two questions."""
    first = await chat.reply()
    second = await chat.start([{"role": "user", "content": "another digit?"}]).reply()
    return 0.5 * (first.strip() == task.answer) + 0.5 * (second.strip() == task.answer)


class TwoDigits:
    """Ask for the answer twice; each right answer has a reward of 0.5."""

    def reset(self, task: Task) -> None:
        self.answer, self.turns = task.answer, 0

    def state_key(self) -> str:
        return f"turn {self.turns}"

    def step(self, reply: str) -> tuple[str | None, float]:
        self.turns += 1
        return (None if self.turns == 2 else "again?"), 0.5 * (reply.strip() == self.answer)
