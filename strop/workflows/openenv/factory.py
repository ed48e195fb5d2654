"""Sessions of OpenEnv's resource session factories, which are Python objects."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

from strop.data.encoding.messages import to_messages
from strop.seeds import derive_seed
from strop.types import Message, Task
from strop.workflows.openenv.session import Observation, as_text, to_reward
from strop.workflows.result import WorkflowResult
from strop.workflows.threads import run_in_thread

_MAX_SEED = 1 << 31


class FactorySession:
    """A `ResourceSession`, whose methods block and run in threads; its `verify` gives the reward."""

    def __init__(self, factory: Any, name: str) -> None:
        self._factory = factory
        self._name = name
        self._session: Any = None
        self.tools: Sequence[Mapping[str, Any]] = ()

    async def reset(self, task: Task) -> Sequence[Message]:
        """Create the session from the task's prompt, with the same seed for all rollouts of a task."""
        seed = derive_seed(0, task.id) % _MAX_SEED
        self._session = await run_in_thread(
            self._factory.create, task.prompt_value, seed=seed, episode_id=self._name
        )
        self.tools = [
            {
                "type": "function",
                "function": {"name": t.name, "description": t.description, "parameters": t.input_schema},
            }
            for t in await run_in_thread(self._session.list_tools)
        ]
        return to_messages(
            await run_in_thread(self._session.initial_messages), "The session's initial messages"
        )

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Observation:
        """Call a tool of the session."""
        result = await run_in_thread(self._session.call_tool, name, dict(arguments))
        text = as_text({"error": result.error} if result.data is None and result.error else result.data)
        return Observation(text, None, bool(result.done))

    async def act(self, text: str) -> Observation:
        """A session without tools ends with the first reply."""
        return Observation("", None, True)

    async def result(self, rewards: Sequence[float | None], messages: Sequence[Message]) -> WorkflowResult:
        """Reward and metrics of `verify`."""
        verified = await run_in_thread(self._session.verify, [dict(message) for message in messages])
        numbers = {k: v for k, v in (verified.metrics or {}).items() if isinstance(v, Real)}
        parts = {name: float(value) for name, value in numbers.items() if math.isfinite(value)}
        return WorkflowResult(reward=to_reward(verified.env_reward), parts=parts)

    async def close(self) -> None:
        """Close the session."""
        if self._session is not None:
            await run_in_thread(self._session.close)
