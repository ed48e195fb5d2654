"""Optimizer updates on offline data: SFT, pairs, labeled responses, and the SFT warm-up before rollouts."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from strop.algorithms.losses.reward_modeling import reward_targets
from strop.algorithms.reference_point import ReferencePoint
from strop.config.schema.preference import ReferenceSyncConfig
from strop.run.optimize.policy_optimizer import PolicyOptimizer, StepBatch, UpdateResult, mean_metrics
from strop.run.state.run_state import RunState
from strop.types import Experience, ExperienceGroup, FloatArray, GlobalCounts, TrainingBatch

LookupReference = Callable[[Sequence[Experience]], list[FloatArray] | None]
"""Returns the reference log-probs [L] of each experience; None where the loss needs none."""


class OfflineUpdater:
    """Trains on given responses. Its only state is that of the reference point: no advantages, no old log-probs."""

    def __init__(
        self,
        policy: PolicyOptimizer,
        *,
        tasks_per_update: int,
        max_updates: int | None = None,
        reference: LookupReference = lambda _: None,
        reference_point: ReferencePoint | None = None,
        reference_sync: ReferenceSyncConfig | None = None,
        learns_rewards: bool = False,
    ) -> None:
        """
        Args:
            policy: runs the updates with the algorithm's loss.
            tasks_per_update: number of rows in one update, for batches without `update_sizes`.
            max_updates: number of updates of the whole run; None for no limit.
            reference: reference log-probs of experiences, for DPO, KTO and BCO.
            reference_point: that of labeled responses; None for an algorithm without labels.
            reference_sync: changes of the reference; None for a reference that stays.
            learns_rewards: whether the loss reads the experiences' rewards, as that of a reward model.
        """
        self._policy = policy
        self._tasks_per_update = tasks_per_update
        self._max_updates = max_updates
        self._reference = reference
        self._reference_point = reference_point
        self._reference_sync = reference_sync
        self._learns_rewards = learns_rewards

    def load_state(self, state: RunState) -> None:
        """Continue from a saved state."""
        if self._reference_point is not None:
            self._reference_point.load_state(state.mean_log_ratio)

    def save_state(self, state: RunState) -> RunState:
        """The state with that of the reference point."""
        point = self._reference_point
        return state if point is None else replace(state, mean_log_ratio=point.state)

    def update(self, batch: StepBatch, *, step: int, updates_done: int) -> UpdateResult:
        """Train on each row once, in the batch's order."""
        started = time.perf_counter()
        minibatches = self._minibatches(batch)
        if self._max_updates is not None:
            minibatches = minibatches[: self._max_updates - updates_done]
        rows = [
            self._update(experiences, step, updates_done + number)
            for number, experiences in enumerate(minibatches)
        ]
        seconds = time.perf_counter() - started
        tokens = float(sum(len(e.token_ids) for group in batch.groups for e in group.experiences))
        return UpdateResult(
            len(rows),
            mean_metrics(rows)
            | {
                "updates": float(len(rows)),
                "trained_tokens": tokens,
                "tokens_per_second": tokens / seconds,
                "time/update_seconds": seconds,
            },
        )

    def _minibatches(self, batch: StepBatch) -> list[list[Experience]]:
        """The experiences of each update."""
        groups, size = batch.groups, self._tasks_per_update
        sizes = batch.update_sizes
        if sizes is None:
            sizes = [len(groups[first : first + size]) for first in range(0, len(groups), size)]
        rest = iter(groups)
        return [_experiences([next(rest) for _ in range(count)]) for count in sizes]

    def _update(self, experiences: Sequence[Experience], step: int, update: int) -> dict[str, float]:
        reference = self._reference(experiences)
        counts = None
        if self._reference_point is not None:
            assert reference is not None
            point = self._reference_point.of_update(experiences, reference)
            counts = replace(GlobalCounts.of(experiences), reference_point=point)
        rewards = [*map(reward_targets, experiences)] if self._learns_rewards else None
        batch = TrainingBatch(experiences, ref_logprobs=reference, returns=rewards)
        metrics = self._policy.update(batch, step=step, update=update, counts=counts)
        sync = self._reference_sync
        if sync is not None and (update + 1) % sync.every_updates == 0:
            self._policy.engine.sync_reference(sync.policy_weight)
        return metrics


def _experiences(groups: Sequence[ExperienceGroup]) -> list[Experience]:
    return [experience for group in groups for experience in group.experiences]
