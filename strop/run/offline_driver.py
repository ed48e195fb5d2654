"""The loop for given answers: take, train; step after step, in one process."""

from __future__ import annotations

import time
from collections.abc import Sequence

from strop.config.schema import Run
from strop.data.answers import AnswerSet
from strop.protocols import Snapshot
from strop.run.folder import RunFolder, RunState
from strop.run.length import Length
from strop.run.loop import Loop, Stepped
from strop.run.policy_updates import PolicyUpdates, means
from strop.run.pupil import HeldOut, Pupil
from strop.run.rates import Rates
from strop.run.records.record import Recorder
from strop.run.updates import plan_updates
from strop.types import Experience


class OfflineDriver(Loop):
    """Learns from given answers: sft and dpo."""

    def __init__(
        self,
        run: Run,
        pupil: Pupil,
        train: AnswerSet,
        held_out: HeldOut,
        length: Length,
        folder: RunFolder,
        recorder: Recorder,
    ) -> None:
        super().__init__(run, pupil.state, length, folder, recorder)
        self._pupil = pupil
        self._train = train
        self._held_out = held_out
        self._updates = PolicyUpdates(pupil.engine, run, Rates(run, length))
        train.position = pupil.state.position

    @property
    def _rates(self) -> Rates:
        return self._updates.rates

    def _learn(self, step: int) -> Stepped:
        self._pupil.stop.check()
        started = time.perf_counter()
        trainer, done = self._run.trainer, self._state.updates
        groups = self._train.take(trainer.tasks_per_step)
        experiences = [experience for group in groups for experience in group.experiences]
        per_update = trainer.tasks_per_update or trainer.tasks_per_step
        batches = plan_updates(groups, per_update=per_update, passes=1, shuffle_seed=None)
        rows = [
            self._update([experiences[i] for i in batch], step, done + number)
            for number, batch in enumerate(batches[: self._length.updates - done])
        ]
        seconds = time.perf_counter() - started
        tokens = float(sum(len(experience.token_ids) for experience in experiences))
        metrics = means(rows) | {
            "updates": float(len(rows)),
            "trained_tokens": tokens,
            "tokens_per_second": tokens / seconds,
            "time/update_seconds": seconds,
            "time/step_seconds": seconds,
        }
        return Stepped(RunState(step, done + len(rows), self._train.position), metrics)

    def _update(self, experiences: Sequence[Experience], step: int, update: int) -> dict[str, float]:
        nothing = [0.0] * len(experiences)
        reference = self._pupil.reference_of(experiences)
        return self._updates.update(experiences, nothing, None, reference, step=step, update=update)

    def _evaluate(self, step: int) -> dict[str, float]:
        evaluation = self._pupil.measure(self._run, self._held_out, step=step)
        for name, groups in evaluation.groups.items():
            self._recorder.evaluation(name, step, groups)
        return evaluation.metrics

    def _snapshot(self) -> Snapshot:
        return self._pupil.engine.snapshot()
