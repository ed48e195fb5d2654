"""Environment with a second try at a sum, for gigpo.yaml."""

from strop.types import Task


class SecondTry:
    """Say that a sum is wrong, and let the model answer once more."""

    def reset(self, task: Task) -> None:
        """Begin with the task's prompt."""
        self.answer = task.answer
        self.tries = 0

    def state_key(self) -> str:
        """Number of the try: first tries are compared with first tries, second ones with second ones."""
        return f"try {self.tries}"

    def step(self, reply: str) -> tuple[str | None, float]:
        """Return the next message, None at the end, and the reward, which is half for a second try."""
        self.tries += 1
        right = reply.strip() == self.answer
        return (None if right or self.tries == 2 else "no"), right / self.tries
