"""An environment of OpenEnv: the model guesses a number, and the server says whether it is higher or lower.

    python higher_lower.py --port 8000            # a reply's text is the guess
    python higher_lower.py --port 8000 --tools    # the guess is the call of a tool

It needs `pip install openenv`, in any Python environment: Strop starts it as a program (`openenv.yaml`).
"""

from __future__ import annotations

import argparse
from typing import Any

import uvicorn
from fastmcp import FastMCP
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation


class Guess(Action):  # type: ignore[misc]
    """A guess, as the model wrote it."""

    text: str


class Hint(Observation):  # type: ignore[misc]
    """The answer of the server to a guess."""

    hint: str = ""


class HigherLower(Environment):  # type: ignore[misc]
    """One number from 0 to 9, which the seed determines."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    number = 0

    def reset(self, seed: int | None = None, number: int | None = None, **_: Any) -> Hint:
        """Choose the number."""
        self.number = (seed or 0) % 10 if number is None else number
        return Hint(hint="Guess a number from 0 to 9.")

    def step(self, action: Guess, **_: Any) -> Hint:
        """Compare the last digit of the guess with the number."""
        digits = [character for character in action.text if character.isdigit()]
        if not digits:
            return Hint(hint="That is no number.", reward=0.0)
        if (guess := int(digits[-1])) == self.number:
            return Hint(hint="Right.", reward=1.0, done=True)
        return Hint(hint="Higher." if guess < self.number else "Lower.", reward=0.0)

    @property
    def state(self) -> State:
        """No state that a client may read."""
        return State()


class HigherLowerTools(MCPEnvironment):  # type: ignore[misc]
    """The same game with a tool; its rewards are those of the calls."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        self.game = HigherLower()
        self.last: Hint | None = None
        server = FastMCP("higher-lower")

        @server.tool
        def guess(number: int) -> str:
            """Guess the number."""
            self.last = self.game.step(Guess(text=str(number)))
            return str(self.last.hint)

        super().__init__(server)

    def reset(self, seed: int | None = None, number: int | None = None, **_: Any) -> Observation:
        """Choose the number."""
        self.game.reset(seed, number)
        return Observation()

    async def step_async(self, action: Action, timeout_s: float | None = None, **_: Any) -> Observation:
        """Call the tool; the observation has the reward of the game."""
        self.last = None
        observation = await super().step_async(action, timeout_s)
        if self.last is not None:
            observation.reward, observation.done = self.last.reward, self.last.done
        return observation

    def _step_impl(self, action: Action, timeout_s: float | None = None, **_: Any) -> Observation:
        return Observation()

    @property
    def state(self) -> State:
        """No state that a client may read."""
        return State()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--tools", action="store_true")
    options = parser.parse_args()
    if options.tools:
        app = create_fastapi_app(
            HigherLowerTools, CallToolAction, CallToolObservation, max_concurrent_envs=64
        )
    else:
        app = create_fastapi_app(HigherLower, Guess, Hint, max_concurrent_envs=64)
    uvicorn.run(app, host="127.0.0.1", port=options.port, log_level="warning")
