"""Episodes of verifiers 0.4: a taskset, the agents that play a task, and their harnesses."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from typing import Any

from strop.errors import DataError
from strop.inference.endpoint.server import EndpointAccess
from strop.types import Task
from strop.workflows.chat import Chat
from strop.workflows.result import ContextLengthExceeded, WorkflowResult


async def play_episode(environment: Any, name: str, task: Task, chat: Chat) -> WorkflowResult:
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
            episode = await own.run_episode(_task(own, name, task), ModelContext(chat.policy_name, client))
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


def _task(environment: Any, name: str, task: Task) -> Any:
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
