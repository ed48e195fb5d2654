"""An environment in which the model guesses a digit and learns whether the right digit is higher or lower."""


class Guess:
    """One game. Each turn is rewarded by itself: a digit at all is worth a little, the right one the most."""

    async def reset(self, task):
        """The task's own prompt is what the model sees first."""
        self.number = int(task.answer)

    async def step(self, reply):
        """Return the reply to a guess and its reward; the reply is None once the guess is right."""
        digits = [character for character in reply if character.isdigit()]
        if not digits:
            return "Say a digit.", 0.0
        guess = int(digits[-1])
        if guess == self.number:
            return None, 1.0
        return ("Higher." if guess < self.number else "Lower."), 0.1
