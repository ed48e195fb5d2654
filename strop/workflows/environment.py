"""A conversation with an environment: a class of the user's that answers, rewards and says when it ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.config.imports import Named
from strop.data.chat import to_messages
from strop.errors import ConfigError
from strop.types import Message, Task
from strop.workflows.chat import Chat
from strop.workflows.outcome import BadOutcome, Outcome, OutOfRoom
from strop.workflows.threads import call, in_thread, is_async


class Environment:
    """Turn about between the model and the environment, until that is done.

    The environment's class is made anew for each rollout, with `args`. It has two methods, with or
    without `async`:

        reset(task) -> messages                   what the model sees first; None for the task's prompt
        step(reply) -> (messages, reward)         what it sees next; None in their place when it is over

    Messages are text (of the user), one message, or a list of them. A reward belongs to the turn of
    the reply, and the rollout's is their sum.
    """

    def __init__(self, environment: str, args: Mapping[str, Any] | None = None, max_turns: int = 16) -> None:
        """`environment` is a dotted path or `file.py:Class`; the model speaks `max_turns` times at most."""
        if max_turns < 1:
            raise ConfigError(f"rollout.workflow environment: max_turns is {max_turns}; write 1 or more.")
        what = f"rollout.workflow environment {environment!r}"
        self._make = Named(environment, what, "class", (), ConfigError).load()
        for method in ("reset", "step"):
            if not callable(getattr(self._make, method, None)):
                raise ConfigError(
                    f"{what}: it has no method `{method}`. An environment has reset(task) -> messages and "
                    "step(reply) -> (messages, reward)."
                )
        self._is_async = is_async(getattr(self._make, "step"))  # noqa: B009
        self._args = dict(args or {})
        self._max_turns = max_turns

    async def run(self, task: Task, chat: Chat) -> Outcome:
        """The conversation; each turn has its reward."""
        environment = await self._made()
        first = await call(environment.reset, task)
        if first is not None:
            chat = chat.start(_messages(first, "reset"), task.tools)
        rewards: list[float] = []
        new: list[Message] = []
        for _ in range(self._max_turns):
            try:
                reply = await chat.reply(*new)
            except OutOfRoom:
                break
            answered, reward = _step(await call(environment.step, reply))
            rewards.append(reward)
            if answered is None:
                break
            new = _messages(answered, "step")
        return Outcome(turn_rewards=rewards)

    async def _made(self) -> Any:
        """An environment that promises, by `async`, not to hold the loop up needs no thread."""
        if self._is_async:
            return self._make(**self._args)
        return await in_thread(self._make, **self._args)


def _messages(value: Any, method: str) -> list[Message]:
    if isinstance(value, Mapping):
        value = [value]
    return list(to_messages(value, f"what the environment's {method} gave"))


def _step(returned: Any) -> tuple[Any, Any]:
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise BadOutcome(
            f"the environment's step returned {returned!r:.80}; it must be (messages, reward), with None for "
            "the messages when it is over"
        )
    return returned
