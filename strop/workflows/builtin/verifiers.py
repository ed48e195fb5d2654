"""`verifiers`: an environment of the package verifiers, with its own rollouts and rewards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.data.sources.generators import load_verifiers_environment
from strop.errors import ConfigError
from strop.types import Task
from strop.workflows.chat import Chat
from strop.workflows.result import WorkflowResult
from strop.workflows.verifiers_episode import play_episode

_EMPTY_REPLY = "EmptyModelResponseError"
"""Error of verifiers for a reply without text and without tool calls: the model's own doing, which it must unlearn."""


class VerifiersWorkflow:
    """Runs an environment's rollout, or its episode since version 0.4, against this rollout's endpoint.

    The environment's rubric gives the reward, and its metrics are parts of it. Tasks are rows of the environment's
    dataset (`path: verifiers://...`), or of a dataset with the same columns.
    """

    def __init__(self, environment: str, args: Mapping[str, Any] | None = None) -> None:
        """`environment` is the name of an installed environment, or `file.py:load_environment`; `args` are the
        arguments of `load_environment`."""
        self._environment = load_verifiers_environment(environment, args or {})
        self._name = environment
        self._plays_episodes = not hasattr(self._environment, "run_rollout")
        if not self._plays_episodes and self._environment.requires_group_rollouts:
            raise ConfigError(
                f"rollout.workflow verifiers: the rubric of {environment!r} compares the rollouts of a group, and "
                "Strop runs and scores each rollout on its own; remove the group reward functions."
            )
        self._shared_client: Any = None

    async def run(self, task: Task, chat: Chat) -> WorkflowResult:
        """One rollout; in the classic interface one with an empty reply ends there, with reward 0.

        Raises `RuntimeError` with the environment's error.
        """
        if self._plays_episodes:
            return await play_episode(self._environment, self._name, task, chat)
        with chat.serve() as access:
            client = self._client(access.url, access.api_key)
            row = {**task.extra, "prompt": task.prompt_value}
            row.setdefault("example_id", 0)
            output = await self._environment.run_rollout(row, client, chat.policy_name, {})
        error = output.get("error")
        if error and error["error"] == _EMPTY_REPLY:
            return WorkflowResult(reward=0.0)
        if error and not chat.is_truncated:
            raise RuntimeError(f"the environment {self._name!r} failed: {error}")
        parts = {name: value for name, value in (output.get("metrics") or {}).items() if value is not None}
        return WorkflowResult(reward=float(output["reward"] or 0.0), parts=parts)

    def _client(self, url: str, api_key: str) -> Any:
        """verifiers' client for one rollout; all rollouts share connections."""
        from openai import AsyncOpenAI
        from verifiers.clients import OpenAIChatCompletionsClient

        if self._shared_client is None:
            self._shared_client = AsyncOpenAI(base_url=url, api_key=api_key, timeout=None, max_retries=0)
        return OpenAIChatCompletionsClient(self._shared_client.with_options(base_url=url, api_key=api_key))
