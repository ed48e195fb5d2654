"""`verifiers`: an environment of the package verifiers, with its own rollouts and rewards."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from typing import Any

from strop.data.sources.generators import load_verifiers_environment
from strop.errors import ConfigError, DataError
from strop.inference.endpoint.server import EndpointAccess
from strop.types import Task
from strop.workflows.chat import Chat
from strop.workflows.result import ContextLengthExceeded, WorkflowResult

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
            return await _play_episode(self._environment, self._name, task, chat)
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


async def _play_episode(environment: Any, name: str, task: Task, chat: Chat) -> WorkflowResult:
    """One episode, in which the agents without a client of their own are the policy.

    The reward is the mean of the traces of trainable agents, and the metrics of these traces are parts of it. Raises
    `RuntimeError` with the episode's error.
    """
    from verifiers.v1 import EvalClientConfig
    from verifiers.v1.clients import ModelContext

    own = copy(environment)  # what serves an episode ends with it
    with chat.serve() as access, _key_variable(access) as variable:
        client = EvalClientConfig(base_url=access.url, api_key_var=variable)
        async with own.serving():
            episode = await own.run_episode(
                _episode_task(own, name, task), ModelContext(chat.policy_name, client)
            )
    traces = [trace for trace in episode.traces if trace.agent is None or trace.agent.trainable]
    if not episode.ok:
        if chat.is_truncated:
            raise ContextLengthExceeded
        errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
        raise RuntimeError(
            f"the environment {name!r} failed: {'; '.join(f'{e.type}: {e.message}' for e in errors)}"
        )
    parts: dict[str, float] = {}
    for trace in traces:
        for metric, value in {**trace.metrics, **{k: r.value for k, r in trace.rewards.items() if r}}.items():
            if value is not None and math.isfinite(value):
                parts[metric] = parts.get(metric, 0.0) + float(value) / len(traces)
    return WorkflowResult(reward=sum(trace.reward for trace in traces) / max(1, len(traces)), parts=parts)


def _episode_task(environment: Any, name: str, task: Task) -> Any:
    kind = type(environment.taskset).task_type()
    data = task.extra.get("task")
    if data is None:
        raise DataError(
            f"The environment {name!r} plays tasks of its own taskset: write `path: verifiers://{name}` for the data."
        )
    return kind(kind.data_type().model_validate(json.loads(data)), environment.config.taskset.task)


@contextmanager
def _key_variable(access: EndpointAccess) -> Iterator[str]:
    """Environment variable with the endpoint's key: the client of verifiers reads it from there."""
    variable = f"STROP_API_KEY_{abs(hash(access.api_key)):X}"
    os.environ[variable] = access.api_key
    try:
        yield variable
    finally:
        del os.environ[variable]
