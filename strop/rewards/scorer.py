"""Weighted sum of reward functions for rollouts."""

from __future__ import annotations

import os
from array import array
from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from strop.config.schema.reward import RewardConfig, RewardFunctionConfig, RewardWorkerConfig
from strop.data.images.messages import with_image_paths
from strop.errors import RewardError
from strop.python_rewards import PythonRewards, list_rewards
from strop.rewards.execution.function_spec import RewardFunctionSpec
from strop.rewards.execution.signature import RewardInput, TrainerState, TrainingLength
from strop.rewards.execution.worker_pool import (
    JobResult,
    RewardWorkerPool,
    ScoringFailure,
    WorkerIsolation,
)
from strop.rewards.graders import LimitExceeded
from strop.rewards.registry import owner_of
from strop.sandbox.registry import open_sandbox
from strop.types import Rollout, RolloutGroup, Task
from strop.workers.child_process import ProcessLimits
from strop.workers.cleanup import keep_first_error
from strop.workers.memory import total_memory_bytes
from strop.workers.threads import LoopResults

_MAX_WORKERS = 4
_TESTS_FRACTION = 0.8
"""Fraction of the time limit that all tests of a program may take, so that a slow program is no failed rollout."""


class Scorer:
    """Adds the weighted sum of reward functions, called in worker processes, to the reward of rollouts.

    `extra` are further functions, as Python objects; `length` is that of the training, None outside
    of one. The constructor finds all functions and binds their signatures, so that mistakes show before training:
    it raises RewardError. Use it as a context manager; any thread may call.
    """

    def __init__(
        self,
        section: RewardConfig,
        extra: PythonRewards | None = None,
        length: TrainingLength | None = None,
    ) -> None:
        functions = [
            RewardFunctionSpec.of(
                f.function, name=f.name, args=_arguments(f, section), on_timeout=section.on_timeout
            )
            for f in section.functions
        ]
        weights = [f.weight for f in section.functions]
        for reward in list_rewards(extra):
            functions.append(
                RewardFunctionSpec.of(reward.function, name=reward.name, on_timeout=section.on_timeout)
            )
            weights.append(reward.weight)
        self.names = tuple(function.name for function in functions)
        """Names of the functions, which are the names of the reward components."""
        self._weights = tuple(weights)
        self._length = length
        self._results = LoopResults()
        reject_duplicate_names(self.names)
        self._pool = RewardWorkerPool(
            functions,
            workers=section.workers or min(_cores(), _MAX_WORKERS),
            timeout_seconds=section.timeout_seconds,
            isolation=worker_isolation(section.worker),
        )

    async def score_rollout(self, task: Task, rollout: Rollout) -> Rollout:
        """The rollout with its reward and the named reward components.

        A component is a function's own value, before its weight; `<name>/<part>` are parts that the function
        names itself. A function that leaves the response out (None in TRL's form) has no component; where all do, the
        reward stays None. A rollout on which a function fails gets status "error" and the message; a rollout that
        has this status already is returned unchanged. A function that exceeds a limit counts as 0 if it is a
        built-in, or on a time-out with `on_timeout: zero`. Raises RewardError if workers cannot load the
        functions.
        """
        if rollout.status == "error":
            return rollout
        result = await self._results.wrap(self._pool.submit(self._input(task, rollout)))
        return self._with_result(rollout, result)

    def score(self, groups: Sequence[RolloutGroup]) -> list[RolloutGroup]:
        """The same groups in the same order, scored; blocks until all are. See `score_rollout`."""
        pairs = [(group.task, rollout) for group in groups for rollout in group.rollouts]
        submitted = [
            None if rollout.status == "error" else self._pool.submit(self._input(task, rollout))
            for task, rollout in pairs
        ]
        scored = iter(
            [
                rollout if future is None else self._with_result(rollout, future.result())
                for (_, rollout), future in zip(pairs, submitted, strict=True)
            ]
        )
        return [replace(group, rollouts=tuple(next(scored) for _ in group.rollouts)) for group in groups]

    def close(self) -> None:
        """End the worker processes and all processes that they started."""
        self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with keep_first_error(error):
            self.close()

    def _input(self, task: Task, rollout: Rollout) -> RewardInput:
        return reward_input(task, rollout, self._trainer_state(rollout))

    def _trainer_state(self, rollout: Rollout) -> TrainerState:
        if self._length is None:
            return TrainerState()
        return self._length.state(rollout.versions[-1] if rollout.turns else 0)

    def _with_result(self, rollout: Rollout, result: JobResult) -> Rollout:
        if isinstance(result, ScoringFailure):
            message = f"task {rollout.task_id!r}: the reward {result.function!r} {result.message}"
            return replace(rollout, status="error", reward=None, reward_parts={}, error=message)
        # A reward that the workflow gave is part of the sum.
        parts = dict(rollout.reward_parts)
        total = rollout.reward
        for name, weight, (value, named) in zip(self.names, self._weights, result, strict=True):
            if value is not None:
                total = (total or 0.0) + weight * value
                parts[name] = float(value)
            parts.update({f"{name}/{part}": part_value for part, part_value in named.items()})
        stated = (named.prediction for _, named in result if named.prediction is not None)
        return replace(
            rollout,
            reward=total,
            reward_parts=parts,
            prediction=next(stated, rollout.prediction),
            reward_limit_exceeded=any(isinstance(value, LimitExceeded) for value, _ in result),
        )


def reward_input(task: Task, rollout: Rollout, state: TrainerState | None = None) -> RewardInput:
    """All possible arguments of a reward function for a rollout; `state` is None outside of a training."""
    ids = rollout.turns[-1].completion_ids.tobytes() if rollout.turns else b""
    prompt = with_image_paths(task.messages)
    return RewardInput(
        text=rollout.text,
        prompt=prompt,
        answer=task.answer,
        source=task.source,
        completion_ids=array("i", ids),  # a worker needs no NumPy to unpickle it
        columns={**task.extra, **rollout.info},
        info=rollout.info,
        conversation=(*prompt, *with_image_paths(rollout.response_messages)),
        prompt_text=task.prompt_value if isinstance(task.prompt_value, str) else None,
        trainer_state=state or TrainerState(),
    )


def _arguments(function: RewardFunctionConfig, section: RewardConfig) -> dict[str, Any]:
    """Arguments of the run file, and the sandbox for a built-in reward that runs programs."""
    if function.function not in owner_of(function.function).sandboxed_rewards:
        return function.args
    if function.function == "code":
        open_sandbox(section.sandbox)  # reports a machine that cannot isolate programs before anything starts
    budget = _TESTS_FRACTION * section.timeout_seconds
    return {**function.args, "sandbox": section.sandbox, "budget_seconds": budget}


def worker_isolation(section: RewardWorkerConfig) -> WorkerIsolation:
    """The limits and the environment of a process that runs code of the user."""
    memory = total_memory_bytes() / 2 if section.memory_gb is None else section.memory_gb * 1e9
    limits = ProcessLimits(int(memory), int(section.file_gb * 1e9), section.processes)
    return WorkerIsolation(limits, (*section.environment, *section.more_environment))


def reject_duplicate_names(names: Sequence[str]) -> None:
    """Raises RewardError if two reward components have the same name, or one has the workflow's."""
    if "workflow" in names:
        raise RewardError(
            "reward: a component is named 'workflow', which is the name of the reward that a workflow itself "
            "returns; give it another name, such as {function: ..., name: ...}."
        )
    duplicates = sorted({name for name in names if names.count(name) > 1})
    if duplicates:
        raise RewardError(
            f"reward: two components are named {duplicates[0]!r}; give each a unique name, such as "
            "{function: ..., name: ...}."
        )


def _cores() -> int:
    """Number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
