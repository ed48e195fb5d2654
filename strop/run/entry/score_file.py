"""Scores the responses in a file and averages them per data source, without loading a model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import comb
from typing import Any

import numpy as np

from strop.config.schema.data import TasksetConfig
from strop.config.schema.reward import RewardConfig
from strop.data.encoding.messages import to_messages
from strop.data.sources.columns import messages_at, value_at
from strop.data.sources.reader import read_rows
from strop.data.sources.rows import DatasetRows
from strop.errors import DataError, RewardError
from strop.reward_comparison import reaches
from strop.rewards.majority_vote import majority_indices
from strop.rewards.scorer import Scorer
from strop.types import Rollout, RolloutGroup, SamplingParams, Task

_ROWS_PER_BATCH = 256


@dataclass(frozen=True, slots=True)
class ResponseFile:
    """A file of responses, and the names of its columns."""

    path: str | tuple[str, ...]
    prompt: str
    responses: str
    source: str
    answer: str


@dataclass(frozen=True, slots=True)
class SourceScores:
    """Scores of one data source."""

    prompts: int
    responses: int
    metrics: dict[str, float]


def score_file(file: ResponseFile, reward: RewardConfig) -> dict[str, SourceScores]:
    """Score every response, and average over the prompts of each source:

    `mean` reward of all responses, `best-of-n` their highest reward, `pass@k` the probability that one of k
    responses drawn without replacement is correct (reward `correct_at` or more; arXiv 2107.03374), and `majority` the
    reward of the answer that most responses give. Raises DataError for rows that cannot be used, and
    RewardError where a reward function fails.
    """
    rows = read_rows(TasksetConfig(path=file.path))
    tables: dict[str, list[tuple[list[float], float]]] = defaultdict(list)
    with Scorer(reward) as scorer:
        for first in range(0, len(rows), _ROWS_PER_BATCH):
            indices = range(first, min(first + _ROWS_PER_BATCH, len(rows)))
            for group in scorer.score([_group(file, rows, index) for index in indices]):
                rewards = [_reward(rollout) for rollout in group.rollouts]
                winners = majority_indices([rollout.text for rollout in group.rollouts])
                vote = float(np.mean([rewards[index] for index in winners]))
                tables[group.task.source].append((rewards, vote))
    return {source: _metrics(table, reward.correct_at) for source, table in tables.items()}


def pass_at_k(responses: int, correct: int, k: int) -> float:
    """Probability that one of k responses, drawn without replacement, is correct."""
    return 1 - comb(responses - correct, k) / comb(responses, k)


def _group(file: ResponseFile, rows: DatasetRows, index: int) -> RolloutGroup:
    row, where = rows[index], rows.where(index)
    texts = value_at(row, file.responses, where)
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise DataError(
            f"{where}: the column {file.responses!r} must hold a list of texts, not {_brief(texts)}."
        )
    prompt = messages_at(row, file.prompt, where)
    task = Task(
        id=str(index),
        messages=to_messages(prompt, where),
        prompt_ids=np.zeros(0, np.int32),
        answer=value_at(row, file.answer, where),
        source=str(value_at(row, file.source, where)),
        extra={name: value for name, value in row.items() if name != file.responses},
        prompt_value=prompt,
    )
    rollouts = tuple(
        Rollout(f"{index}-{position}", task.id, task.id, position, (), text, "ok", SamplingParams())
        for position, text in enumerate(texts)
    )
    return RolloutGroup(task.id, task, rollouts)


def _reward(rollout: Rollout) -> float:
    if rollout.reward is None:
        why = rollout.error or "all reward functions returned None, so it has no reward"
        raise RewardError(f"row {rollout.task_id}, response {rollout.index}: {why}.")
    return rollout.reward


def _metrics(table: Sequence[tuple[list[float], float]], correct_at: float) -> SourceScores:
    fewest = min(len(rewards) for rewards, _ in table)
    ks = sorted({2**power for power in range(fewest.bit_length()) if 2**power <= fewest} | {fewest})
    correct = [
        (len(rewards), sum(map(partial(reaches, threshold=correct_at), rewards))) for rewards, _ in table
    ]
    metrics = {
        "mean": _mean([float(np.mean(rewards)) for rewards, _ in table]),
        "best-of-n": _mean([max(rewards) for rewards, _ in table]),
        **{f"pass@{k}": _mean([pass_at_k(n, count, k) for n, count in correct]) for k in ks},
        "majority": _mean([vote for _, vote in table]),
    }
    return SourceScores(len(table), sum(len(rewards) for rewards, _ in table), metrics)


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
