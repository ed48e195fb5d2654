"""`environment`: a conversation with an environment class of the user, which responds, rewards and ends it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from strop.config.user_code import ImportPath
from strop.data.encoding.messages import listed, to_messages
from strop.errors import ConfigError
from strop.types import Message, Task
from strop.workflows.chat import Chat
from strop.workflows.result import ContextLengthExceeded, InvalidWorkflowResult, WorkflowResult
from strop.workflows.threads import call_sync_or_async, is_async, run_in_thread


class EnvironmentWorkflow:
    """Alternates between the model and the environment, until the environment is done.

    Each rollout constructs the environment's class, with `args`. The class has two methods, with or without
    `async`:

        reset(task) -> messages                   first messages to the model; None for the task's prompt
        step(reply) -> (messages, reward)         next messages to the model; None at the end

    A third one is optional:

        state_key() -> text                       state before the next reply, equal for equal states; the
                                                  messages to the model without it

    Messages are text (of the user), one message, or a list of messages. Each reward belongs to the turn of its
    reply; the rollout's reward is their sum.
    """

    def __init__(self, environment: str, args: Mapping[str, Any] | None = None, max_turns: int = 16) -> None:
        """`environment` is a dotted path or `file.py:Class`; `max_turns` the maximum number of replies."""
        if max_turns < 1:
            raise ConfigError(f"rollout.workflow environment: max_turns is {max_turns}; write 1 or more.")
        what = f"rollout.workflow environment {environment!r}"
        self._make = ImportPath(environment, what, "class", (), ConfigError).load()
        for method in ("reset", "step"):
            if not callable(getattr(self._make, method, None)):
                raise ConfigError(
                    f"{what}: the class has no method `{method}`. An environment has reset(task) -> messages and "
                    "step(reply) -> (messages, reward)."
                )
        self._is_async = is_async(getattr(self._make, "step"))  # noqa: B009
        self._args = dict(args or {})
        self._max_turns = max_turns

    async def run(self, task: Task, chat: Chat) -> WorkflowResult:
        """Run the conversation; each turn has its reward."""
        environment = await self._construct()
        first = await call_sync_or_async(environment.reset, task)
        if first is not None:
            chat = chat.start(_messages(first, "reset"), task.tools)
        rewards: list[float] = []
        states: list[str] = []
        new: list[Message] = []
        for _ in range(self._max_turns):
            state = await self._state(environment, new or chat.messages)
            try:
                reply = await chat.reply(*new)
            except ContextLengthExceeded:
                break
            messages, reward = _step(await call_sync_or_async(environment.step, reply))
            rewards.append(reward)
            states.append(state)
            if messages is None:
                break
            new = _messages(messages, "step")
        return WorkflowResult(turn_rewards=rewards, turn_states=states)

    async def _state(self, environment: Any, observed: Sequence[Message]) -> str:
        """Text of the environment's state: by `state_key`, or else the messages that the model replies to."""
        state_key = getattr(environment, "state_key", None)
        if not callable(state_key):
            return json.dumps([dict(message) for message in observed], sort_keys=True, default=str)
        state = await call_sync_or_async(state_key)
        if not isinstance(state, str):
            raise InvalidWorkflowResult(
                f"the environment's state_key returned {state!r:.80}; it must return text"
            )
        return state

    async def _construct(self) -> Any:
        """An instance of the class; without `async` methods it is constructed in a thread."""
        if self._is_async:
            return self._make(**self._args)
        return await run_in_thread(self._make, **self._args)


def _messages(value: Any, method: str) -> list[Message]:
    return list(to_messages(listed(value), f"the result of the environment's {method}"))


def _step(returned: Any) -> tuple[Any, Any]:
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise InvalidWorkflowResult(
            f"the environment's step returned {returned!r:.80}; it must return (messages, reward), with None for "
            "the messages at the end"
        )
    return returned
