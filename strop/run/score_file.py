"""Scores answers that stand in a file, each source apart: no model is loaded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from typing import Any

import numpy as np

from strop.config.schema.data import Taskset
from strop.config.schema.reward import Reward
from strop.data.chat import to_messages
from strop.data.columns import value_at
from strop.data.read import read_rows
from strop.data.rows import Rows
from strop.errors import DataError, RewardError
from strop.rewards.score import Scorer
from strop.rewards.vote import majority
from strop.types import Group, Rollout, Sampling, Task

_ROWS_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class AnswerFile:
    """A file of answers, and which columns hold what."""

    path: str | tuple[str, ...]
    prompt: str
    responses: str
    source: str
    answer: str


@dataclass(frozen=True, slots=True)
class Figures:
    """What one source's answers come to."""

    prompts: int
    responses: int
    metrics: dict[str, float]


def score_file(file: AnswerFile, reward: Reward) -> dict[str, Figures]:
    """Score every response, and average over the prompts of each source:

    `mean` of all responses, `best-of-n` their highest, `pass@k` the chance that one of k drawn
    without replacement is right (reward 1 or more; arXiv 2107.03374), `majority` the reward of the
    answer that most responses come to. Raises DataError for rows that cannot be used, and
    RewardError where a reward breaks.
    """
    rows = read_rows(Taskset(path=file.path))
    tables: dict[str, list[tuple[list[float], float]]] = defaultdict(list)
    with Scorer(reward) as scorer:
        for first in range(0, len(rows), _ROWS_AT_ONCE):
            indices = range(first, min(first + _ROWS_AT_ONCE, len(rows)))
            for group in scorer.score([_group(file, rows, index) for index in indices]):
                rewards = [_reward(rollout) for rollout in group.rollouts]
                winners = majority([rollout.text for rollout in group.rollouts])
                vote = float(np.mean([rewards[index] for index in winners]))
                tables[group.task.source].append((rewards, vote))
    return {source: _figures(table) for source, table in tables.items()}


def pass_at_k(responses: int, right: int, k: int) -> float:
    """The chance that one of k responses, drawn without replacement, is right."""
    return 1 - comb(responses - right, k) / comb(responses, k)


def _group(file: AnswerFile, rows: Rows, index: int) -> Group:
    row, where = rows[index], rows.where(index)
    texts = value_at(row, file.responses, where)
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise DataError(f"{where}: {file.responses!r} is no list of texts, but {_brief(texts)}.")
    task = Task(
        id=str(index),
        messages=to_messages(value_at(row, file.prompt, where), where),
        prompt_ids=np.zeros(0, np.int32),
        answer=value_at(row, file.answer, where),
        source=str(value_at(row, file.source, where)),
        extra={name: value for name, value in row.items() if name != file.responses},
    )
    rollouts = tuple(
        Rollout(f"{index}-{place}", task.id, task.id, place, (), text, "ok", Sampling())
        for place, text in enumerate(texts)
    )
    return Group(task.id, task, rollouts)


def _reward(rollout: Rollout) -> float:
    if rollout.reward is None:
        raise RewardError(f"row {rollout.task_id}, response {rollout.index}: {rollout.error}.")
    return rollout.reward


def _figures(table: Sequence[tuple[list[float], float]]) -> Figures:
    fewest = min(len(rewards) for rewards, _ in table)
    ks = sorted({2**power for power in range(fewest.bit_length()) if 2**power <= fewest} | {fewest})
    right = [(len(rewards), sum(reward >= 1 for reward in rewards)) for rewards, _ in table]
    metrics = {
        "mean": _mean([float(np.mean(rewards)) for rewards, _ in table]),
        "best-of-n": _mean([max(rewards) for rewards, _ in table]),
        **{f"pass@{k}": _mean([pass_at_k(n, count, k) for n, count in right]) for k in ks},
        "majority": _mean([vote for _, vote in table]),
    }
    return Figures(len(table), sum(len(rewards) for rewards, _ in table), metrics)


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
