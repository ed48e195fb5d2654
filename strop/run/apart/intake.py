"""The trainer's end of a buffer that an explorer elsewhere fills: what a step learns from, each group once.

A checkpoint holds the ids of the groups that the trainer is done with since the one before; once it is in
its place they are acknowledged. A trainer that was killed in between finds the ids in its checkpoint.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from strop.buffer.priority import version_of
from strop.config.schema import Run
from strop.config.schema.buffer import PriorityBuffer
from strop.config.schema.sample import StalenessSample
from strop.config.schema.synchronizer import Fixed, MemorySync
from strop.errors import BufferEnded, StoreError, WritersGone
from strop.protocols import Buffer
from strop.run.apart.step_groups import step_of, without_padding
from strop.types import ExperienceGroup


@dataclass(frozen=True, slots=True)
class Batch:
    """What one step learns from."""

    groups: Sequence[ExperienceGroup]
    metrics: dict[str, float] = field(default_factory=dict)
    """How it came together."""


class Intake(ABC):
    """Hands out batches, and keeps account of what no checkpoint has yet."""

    def __init__(self, buffer: Buffer, tasks_per_step: int) -> None:
        self._buffer = buffer
        self._size = tasks_per_step
        self._owed: list[str] = []
        self.shift = 0
        """See `RunState.shift`; set it for an exact resume."""

    @abstractmethod
    def take(self, step: int) -> Batch | None:
        """What step `step` learns from; None where the explorer has finished and nothing is left.

        Raises `StoreError` where nothing comes in `buffer.read_timeout_seconds`.
        """

    def settle(self, ids: Sequence[str]) -> None:
        """These are in the checkpoint that the run goes on from; perhaps nobody has acknowledged them."""
        self._buffer.discard(ids)

    @property
    def owed(self) -> tuple[str, ...]:
        """The ids of all that the trainer is done with and that were not handed over, for the checkpoint."""
        return tuple(self._owed)

    def hand_over(self, ids: Sequence[str]) -> Sequence[str]:
        """The oldest of these, which a checkpoint has: from now on they are the caller's to acknowledge."""
        del self._owed[: len(ids)]
        return ids

    def waiting(self) -> int:
        """How many groups are in the buffer that nobody has taken."""
        return self._buffer.counts().queued

    def acknowledge(self, ids: Sequence[str]) -> None:
        """These are in a checkpoint."""
        self._buffer.acknowledge(ids)


class ByStep(Intake):
    """Step after step as the explorer sampled them: the same batches, whatever the timing."""

    def take(self, step: int) -> Batch:
        """All groups of step `step`. Raises `StoreError` where only some of them come, or another step's,
        and `BufferEnded` where the explorer has ended before."""
        taken = self._buffer.take(self._size)
        if len(taken) < self._size:
            raise StoreError(
                f"Of step {step} only {len(taken)} groups of {self._size} came in "
                "buffer.read_timeout_seconds, so the trainer stops; nothing is lost. Is the explorer at "
                "work? If its steps take that long, set `buffer.read_timeout_seconds` higher."
            )
        others = sorted({step_of(group.id) for group in taken} - {step})
        if others:
            raise StoreError(
                f"The trainer's next step is {step}, and the buffer gave groups of step {others[0]}: "
                "explorer and trainer are not of one run, or their trainer.tasks_per_step differ. Start "
                "both with the same run file, or give this run a `buffer.name` of its own."
            )
        self._owed += [group.id for group in taken]
        return Batch(without_padding(taken))


class ByArrival(Intake):
    """The next groups in the order that the buffer gives, whatever step they were sampled in.

    A batch that is not whole in time is learned from as it is. What is too old is thrown away, and the
    batch filled with younger ones.
    """

    def __init__(
        self,
        buffer: Buffer,
        tasks_per_step: int,
        *,
        read_timeout_seconds: float,
        max_staleness: int | None,
        tell_shift: Callable[[int], None],
    ) -> None:
        """`max_staleness` in steps; None throws nothing away. The explorer is told what `shift` becomes."""
        super().__init__(buffer, tasks_per_step)
        self._tell_shift = tell_shift
        self._read_timeout_seconds = read_timeout_seconds
        self._max_staleness = max_staleness
        self._evicted = buffer.counts().evicted

    def take(self, step: int) -> Batch | None:
        """See `Intake`. Raises `WritersGone` where the explorer is gone before it has finished."""
        deadline = time.monotonic() + self._read_timeout_seconds
        batch: list[ExperienceGroup] = []
        too_old = 0
        while len(batch) < self._size:
            wanted, left = self._size - len(batch), max(0.0, deadline - time.monotonic())
            try:
                groups = self._buffer.take(wanted, timeout_seconds=left)
            except WritersGone:
                raise
            except BufferEnded:
                break
            old = [group.id for group in groups if self._is_too_old(group, step)]
            if old:
                self._throw_away(old)
                self._move(-len(old))
            batch += [group for group in groups if group.id not in old]
            too_old += len(old)
            if len(groups) < wanted and batch:
                break
            if not groups:
                raise self._nothing_came(step)
        if not batch:
            return None
        self._owed += [group.id for group in batch]
        metrics = self._metrics(batch) | {"groups/too_old": float(too_old)}
        not_new = metrics["groups/missing"] + metrics.get("groups/again", 0.0)
        self._move(int(not_new - metrics["groups/evicted"]))
        return Batch(batch, metrics)

    def _throw_away(self, ids: Sequence[str]) -> None:
        """With the next checkpoint: from an older one they come again, and are too old again, or not."""
        self._owed += ids

    def _move(self, groups: int) -> None:
        if groups:
            self.shift += groups
            self._tell_shift(self.shift)

    def _is_too_old(self, group: ExperienceGroup, step: int) -> bool:
        return self._max_staleness is not None and step - 1 - version_of(group) > self._max_staleness

    def _metrics(self, batch: Sequence[ExperienceGroup]) -> dict[str, float]:
        counts = self._buffer.counts()
        evicted, self._evicted = max(0, counts.evicted - self._evicted), counts.evicted
        return {
            "groups/trained": float(len(batch)),
            "groups/missing": float(self._size - len(batch)),
            "groups/evicted": float(evicted),
            "groups/waiting": float(counts.queued),
        }

    def _nothing_came(self, step: int) -> StoreError:
        return StoreError(
            f"For step {step} not one group that can be learned from came in buffer.read_timeout_seconds "
            f"({self._read_timeout_seconds:g}), so the trainer stops; nothing is lost. Is the explorer at "
            "work? If its steps take that long, set `buffer.read_timeout_seconds` higher."
        )


class Reusing(ByArrival):
    """The same where a group may be learned from again, as often as the buffer gives it."""

    _seen: frozenset[str] = frozenset()

    def settle(self, ids: Sequence[str]) -> None:
        """They may come again in any case."""

    def _throw_away(self, ids: Sequence[str]) -> None:
        """At once: acknowledged, they would come again."""
        self._buffer.discard(ids)

    def _metrics(self, batch: Sequence[ExperienceGroup]) -> dict[str, float]:
        ids = frozenset(group.id for group in batch)
        again, self._seen = len(ids & self._seen), self._seen | ids
        return super()._metrics(batch) | {"groups/again": float(again)}


def open_intake(run: Run, buffer: Buffer, tell_shift: Callable[[int], None]) -> Intake:
    """By step where a step's number says which weights it is sampled with, else by arrival."""
    assert not isinstance(run.synchronizer, MemorySync)
    size, sample = run.trainer.tasks_per_step, run.trainer.sample
    if isinstance(run.synchronizer.style, Fixed):
        return ByStep(buffer, size)
    reuses = isinstance(run.buffer, PriorityBuffer) and run.buffer.reuse_cooldown_seconds is not None
    oldest = int(sample.max_staleness.count) if isinstance(sample, StalenessSample) else None
    return (Reusing if reuses else ByArrival)(
        buffer,
        size,
        read_timeout_seconds=run.buffer.read_timeout_seconds,
        max_staleness=oldest,
        tell_shift=tell_shift,
    )
