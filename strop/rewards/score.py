"""Rewards for groups of rollouts: what the rest of Strop calls."""

from __future__ import annotations

import os
import threading
from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from strop.config.schema.reward import Reward as RewardSection
from strop.errors import RewardError
from strop.rewards.function import Function
from strop.rewards.pool import Broken, Pool, Scores
from strop.rewards.signature import Answer
from strop.types import Group, Rollout

_MOST_WORKERS = 4


class Scorer:
    """The run's reward: a weighted sum of functions, run in worker processes.

    `extra` is one more function, as a Python object, with weight 1. All functions are found and
    their signatures understood when the Scorer is made, so that a mistake shows before training:
    raises RewardError. Use it as a context manager; any thread may call `score`.
    """

    def __init__(self, section: RewardSection, extra: Callable[..., Any] | None = None) -> None:
        functions = [Function.of(f.function, name=f.name, args=f.args) for f in section.functions]
        weights = [f.weight for f in section.functions]
        if extra is not None:
            functions.append(Function.of(extra))
            weights.append(1.0)
        self.names = tuple(function.name for function in functions)
        """Of the functions, and so of the parts."""
        self._weights = tuple(weights)
        refuse_doubles(self.names)
        self._pool = Pool(
            functions,
            workers=section.workers or min(_cores(), _MOST_WORKERS),
            timeout_seconds=section.timeout_seconds,
        )
        self._lock = threading.Lock()

    def score(self, groups: Sequence[Group]) -> list[Group]:
        """The same groups in the same order, their rollouts with reward and named parts.

        A part is a function's own value, before its weight; `<name>/<part>` are parts it names
        itself. A rollout on which a function breaks gets status "error" and says why; one that
        came with it stays as it is. Raises RewardError when workers cannot load the functions.
        """
        places = [
            (g, r)
            for g, group in enumerate(groups)
            for r, rollout in enumerate(group.rollouts)
            if rollout.status != "error"
        ]
        answers = [_answer(groups[g], groups[g].rollouts[r]) for g, r in places]
        with self._lock:
            results = self._pool.run(answers)
        rollouts = [list(group.rollouts) for group in groups]
        for (g, r), result in zip(places, results, strict=True):
            rollouts[g][r] = self._scored(rollouts[g][r], result)
        return [replace(group, rollouts=tuple(r)) for group, r in zip(groups, rollouts, strict=True)]

    def close(self) -> None:
        """End the worker processes, and whatever they have started."""
        self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _scored(self, rollout: Rollout, result: Scores | Broken) -> Rollout:
        if isinstance(result, Broken):
            what = f"task {rollout.task_id!r}: the reward {result.function!r} {result.what}"
            return replace(rollout, status="error", reward=None, reward_parts={}, error=what)
        # What its workflow gave it stands there already.
        parts = dict(rollout.reward_parts)
        total = rollout.reward or 0.0
        for name, weight, (value, named) in zip(self.names, self._weights, result, strict=True):
            total += weight * value
            parts[name] = value
            parts.update({f"{name}/{part}": of_it for part, of_it in named.items()})
        return replace(rollout, reward=total, reward_parts=parts)


def _answer(group: Group, rollout: Rollout) -> Answer:
    task = group.task
    ids = rollout.turns[-1].completion_ids.tobytes() if rollout.turns else b""
    return Answer(
        text=rollout.text,
        prompt=task.messages,
        answer=task.answer,
        source=task.source,
        completion_ids=array("i", ids),  # no NumPy in a worker that needs none
        columns=task.extra,
        conversation=(*task.messages, *rollout.said),
    )


def refuse_doubles(names: Sequence[str]) -> None:
    """Raises RewardError where two parts of the reward have the same name, or one the workflow's."""
    if "workflow" in names:
        raise RewardError(
            "reward: a part is called 'workflow', as what a workflow itself gives is called; give it another "
            "name, such as {function: ..., name: ...}."
        )
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise RewardError(
            f"reward: two parts are called {doubled[0]!r}; give each a name of its own, such as "
            "{function: ..., name: ...}."
        )


def _cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
