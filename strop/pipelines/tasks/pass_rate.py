"""Task operator that measures how often a model solves a task, and filters tasks by it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from strop.config.schema.task_pipeline import PassRateConfig
from strop.errors import DataError
from strop.pipelines.tasks.columns import as_text, with_column
from strop.pipelines.tasks.filters import outside
from strop.pipelines.tasks.llm_operators import plain_rows
from strop.pipelines.tasks.parts import ROW_ID
from strop.pipelines.tasks.protocol import PipelineServices, Processed, Removal, Rewards, kept
from strop.reward_comparison import reaches
from strop.rewards.judges.chat_client import JudgeCache, JudgeReply, cache_key

_ROWS_PER_CALL = 64
"""Number of tasks sampled together; their rewards are stored before the next ones begin."""


class PassRate:
    """Adds `pass_rate`, `reward_mean` and `reward_std` of a task's answers, and filters by them."""

    reads = ()
    adds = ("pass_rate", "reward_mean", "reward_std")

    def __init__(self, section: PassRateConfig, services: PipelineServices, cache: JudgeCache) -> None:
        self._section = section
        self._services = services
        self._cache = cache
        self._rollouts = self._failed = 0
        identity = section.model_dump(include={"rollouts_per_task", "temperature"})
        self._key = [services.model_fingerprint(section.model), services.rollout_fingerprint(), identity]

    def __call__(self, table: pa.Table) -> Processed:
        rewards = self._rewards(table)
        rate, mean, deviation = np.full((3, table.num_rows), np.nan)
        for row, found in enumerate(rewards):
            if found.scored:
                values = np.array(found.scored)
                rate[row] = reaches(values, self._section.pass_reward).mean()
                mean[row], deviation[row] = values.mean(), values.std()
        for name, values in zip(self.adds, (rate, mean, deviation), strict=True):
            table = with_column(table, name, pa.array(values, from_pandas=True))
        faults = [
            Removal(row, "cannot be sampled", found.fault) for row, found in enumerate(rewards) if found.fault
        ]
        removals = {
            removal.row: removal
            for removal in outside(rate, self._section.min, self._section.max, "pass_rate")
        }
        if self._section.min_reward_std > 0:
            # rounded, because rewards are sums of floating-point numbers
            for removal in outside(np.round(deviation, 9), self._section.min_reward_std, None, "reward_std"):
                removals.setdefault(removal.row, removal)
        removals.update((removal.row, removal) for removal in faults)
        unscored = int(np.isnan(rate).sum()) - len(faults)
        counts = {"no scored answer": unscored} if unscored else {}
        ordered = [removals[row] for row in sorted(removals)]
        scores = {
            name: values[~np.isnan(values)]
            for name, values in (("pass_rate", rate), ("reward_std", deviation))
        }
        return kept(table, ordered, scores, counts)

    def _rewards(self, table: pa.Table) -> list[Rewards]:
        keys = [cache_key("pass_rate", {"of": self._key, "row": _identity(row)}) for row in plain_rows(table)]
        found: dict[int, Rewards] = {}
        for row, key in enumerate(keys):
            if (text := self._cache.get(key)) is not None:
                stored = json.loads(text)
                found[row] = Rewards(tuple(stored["scored"]), stored["failed"], stored["fault"])
        missing = [row for row in range(table.num_rows) if row not in found]
        ids = (
            table.column(ROW_ID).to_pylist() if ROW_ID in table.column_names else list(range(table.num_rows))
        )
        for at in range(0, len(missing), _ROWS_PER_CALL):
            rows = missing[at : at + _ROWS_PER_CALL]
            for row, rewards in zip(rows, self._sample(table, rows, ids), strict=True):
                found[row] = rewards
                stored = {"scored": rewards.scored, "failed": rewards.failed, "fault": rewards.fault}
                self._cache.put(keys[row], JudgeReply(json.dumps(stored), None))
        return [found[row] for row in range(table.num_rows)]

    def _sample(self, table: pa.Table, rows: Sequence[int], ids: Sequence[int]) -> list[Rewards]:
        rewards = self._services.rewards(
            self._section, table.take(pa.array(rows)), [ids[row] for row in rows]
        )
        self._rollouts += sum(len(each.scored) + each.failed for each in rewards)
        self._failed += sum(each.failed for each in rewards)
        if self._failed > self._section.max_failed_fraction * self._rollouts:
            raise DataError(
                f"{self._failed} of {self._rollouts} rollouts failed, more than max_failed_fraction "
                f"{self._section.max_failed_fraction:g}; look at the reward and the workflow, or raise it"
            )
        return rewards


def _identity(row: dict[str, Any]) -> str:
    return as_text({key: as_text(value) for key, value in row.items()})
