"""The trainer's end of a buffer that an explorer elsewhere fills: each step's groups, once."""

from __future__ import annotations

from strop.errors import BufferEnded, StoreError
from strop.protocols import Buffer
from strop.run.apart.step_groups import step_of, without_padding
from strop.types import ExperienceGroup


class Intake:
    """Hands out the steps in their order, and acknowledges them once a checkpoint has them.

    A trainer that was killed between its checkpoint and the acknowledgement finds that checkpoint's
    groups in the buffer again; their ids tell that they are in its weights already.
    """

    def __init__(self, buffer: Buffer, tasks_per_step: int) -> None:
        self._buffer = buffer
        self._size = tasks_per_step
        self._owed: list[str] = []
        self._early: list[ExperienceGroup] = []

    def settle(self, done: int) -> None:
        """Acknowledge what is in the weights after step `done`, and was not acknowledged yet."""
        while not self._early:
            try:
                groups = self._buffer.take(self._size, timeout_seconds=0)
            except BufferEnded:
                return
            if not groups:
                return
            self._sort(groups, done)

    def take(self, step: int) -> list[ExperienceGroup]:
        """All groups of step `step`, once they are there. Raises `StoreError` when that takes too long or
        another step's come, and `BufferEnded` where the explorer has ended before."""
        while len(self._early) < self._size:
            wanted = self._size - len(self._early)
            groups = self._buffer.take(wanted)
            if len(groups) < wanted:
                raise StoreError(
                    f"Of step {step} only {len(self._early) + len(groups)} groups of {self._size} came in "
                    "buffer.read_timeout_seconds, so the trainer stops; nothing is lost. Is the explorer at "
                    "work? If its steps take that long, set `buffer.read_timeout_seconds` higher."
                )
            self._sort(groups, step - 1)
        taken, self._early = self._early, []
        others = sorted({step_of(group.id) for group in taken} - {step})
        if others:
            raise StoreError(
                f"The trainer's next step is {step}, and the buffer gave groups of step {others[0]}: "
                "explorer and trainer are not of one run, or their trainer.tasks_per_step differ. Start "
                "both with the same run file, or give this run a `buffer.name` of its own."
            )
        self._owed += [group.id for group in taken]
        return without_padding(taken)

    def handed_out(self) -> list[str]:
        """The ids of all that was handed out since this was asked last."""
        owed, self._owed = self._owed, []
        return owed

    def acknowledge(self, ids: list[str]) -> None:
        """These are in a checkpoint."""
        self._buffer.acknowledge(ids)

    def _sort(self, groups: list[ExperienceGroup], done: int) -> None:
        known = [group.id for group in groups if step_of(group.id) <= done]
        if known:
            self._buffer.acknowledge(known)
        self._early += [group for group in groups if step_of(group.id) > done]
