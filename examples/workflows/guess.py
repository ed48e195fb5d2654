"""An environment: the model is to guess a digit, and is told whether the right one is higher or lower."""


class Guess:
    """One game. Each turn is rewarded by itself: a digit at all is worth a little, the right one the most."""

    async def reset(self, task):
        """The task's own prompt is what the model sees first."""
        self.number = int(task.answer)

    async def step(self, reply):
        """What the model is told of its guess, and what that was worth; None once it is right."""
        digits = [character for character in reply if character.isdigit()]
        if not digits:
            return "Say a digit.", 0.0
        guess = int(digits[-1])
        if guess == self.number:
            return None, 1.0
        return ("Higher." if guess < self.number else "Lower."), 0.1
