"""Interactions: simulated users, with verl's interface, who respond to replies without a tool call."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from strop.workflows.result import InvalidWorkflowResult
from strop.workflows.tools.tool import AgentData


@dataclass(frozen=True, slots=True)
class UserMessage:
    """Response of a simulated user."""

    text: str
    ends: bool
    """Whether the conversation ends, without this message."""


class InteractionSession:
    """A simulated user within one rollout."""

    def __init__(self, user: Any, options: Mapping[str, Any], data: AgentData) -> None:
        """`user` is an object with verl's interface; `options` are the task's `interaction_kwargs`."""
        self._user = user
        self._options = options
        self._data = data

    async def open(self) -> None:
        """Create the instance."""
        await self._user.start_interaction(self._data.request_id, **self._options)

    async def respond(self) -> UserMessage:
        """Response to the conversation so far. Raises InvalidWorkflowResult for a value of another form."""
        messages = [dict(message) for message in self._data.messages]
        returned = await self._user.generate_response(self._data.request_id, messages, **self._options)
        if not isinstance(returned, tuple) or len(returned) != 4 or not isinstance(returned[1], str):
            raise InvalidWorkflowResult(
                f"generate_response of the interaction returned {returned!r:.80}; it must return (whether the "
                "conversation ends, text, score, dict)"
            )
        ends, text, score, _ = returned
        if score is not None:
            self._data.turn_scores.append(float(score))
        return UserMessage(text, bool(ends))

    async def close(self) -> None:
        """Release the instance."""
        finalize = getattr(self._user, "finalize_interaction", None)
        if finalize is None:
            return
        takes_id = bool(inspect.signature(finalize).parameters)
        await (finalize(self._data.request_id) if takes_id else finalize())


def select_interaction(
    users: Mapping[str, Any], options: Mapping[str, Any], data: AgentData
) -> InteractionSession | None:
    """The interaction that a task names, or the only one there is; None for a task without options.

    Raises InvalidWorkflowResult for a name that does not exist.
    """
    if not users or not options:
        return None
    name = options.get("name", next(iter(users)) if len(users) == 1 else None)
    if name not in users:
        raise InvalidWorkflowResult(
            f"the task's extra_info.interaction_kwargs.name is {name!r}; the interactions are "
            f"{', '.join(users)}"
        )
    return InteractionSession(users[name], options, data)
