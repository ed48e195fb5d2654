"""The loop for given answers: take, train; step after step, in one process."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from strop.config.schema import Run
from strop.data.answers import AnswerSet
from strop.protocols import TrainingEngine
from strop.run.evaluate import evaluate
from strop.run.folder import RunFolder, RunState
from strop.run.length import Length
from strop.run.loop import Loop, Stepped
from strop.run.policy import Policy
from strop.run.policy_updates import PolicyUpdates, means
from strop.run.rates import Rates
from strop.run.record import Recorder
from strop.run.reference import Reference
from strop.run.stopping import StopSignal
from strop.run.tasks import EvalTasks
from strop.run.updates import plan_updates
from strop.types import Experience, Floats


@dataclass(frozen=True, slots=True)
class Answers:
    """What an offline run learns from, and what it measures."""

    train: AnswerSet
    eval: tuple[AnswerSet, ...]
    """Measured by their loss."""
    sampled: EvalTasks
    """Measured by the reward of sampled answers."""


@dataclass(frozen=True, slots=True)
class Pupil:
    """The model that learns, and where it stands."""

    engine: TrainingEngine
    updates: PolicyUpdates
    state: RunState
    reference: Reference | None
    """The reference's log-probs of all answers, where the algorithm wants them."""
    policy: Policy | None
    """What samples from it, where something is measured that way."""


class OfflineDriver(Loop):
    """Learns from given answers: sft and dpo."""

    def __init__(
        self,
        run: Run,
        pupil: Pupil,
        answers: Answers,
        stop: StopSignal,
        length: Length,
        folder: RunFolder,
        recorder: Recorder,
    ) -> None:
        super().__init__(run, pupil.state, length, folder, recorder)
        self._pupil = pupil
        self._answers = answers
        self._stop = stop
        answers.train.position = pupil.state.position

    @property
    def _rates(self) -> Rates:
        return self._pupil.updates.rates

    def _learn(self, step: int) -> Stepped:
        self._stop.check()
        started = time.perf_counter()
        trainer, done = self._run.trainer, self._state.updates
        groups = self._answers.train.take(trainer.tasks_per_step)
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
        return Stepped(RunState(step, done + len(rows), self._answers.train.position), metrics)

    def _update(self, experiences: Sequence[Experience], step: int, update: int) -> dict[str, float]:
        nothing = [0.0] * len(experiences)
        reference = self._reference(experiences)
        return self._pupil.updates.update(experiences, nothing, None, reference, step=step, update=update)

    def _reference(self, experiences: Sequence[Experience]) -> list[Floats] | None:
        known = self._pupil.reference
        return None if known is None else [known[experience.id] for experience in experiences]

    def _evaluate(self, step: int) -> dict[str, float]:
        started = time.perf_counter()
        metrics: dict[str, float] = {}
        for answers in self._answers.eval:
            experiences = [experience for group in answers.all() for experience in group.experiences]
            measured = self._pupil.updates.measure(experiences, self._reference(experiences))
            kept = {name: value for name, value in measured.items() if name in _HELD_OUT}
            metrics |= {f"eval/{answers.name}/{name}": value for name, value in kept.items()}
        if self._pupil.policy is not None:
            self._pupil.policy.synchronizer.publish(step)
            evaluation = evaluate(self._run, self._pupil.policy.explorer, self._answers.sampled, step=step)
            for name, groups in evaluation.groups.items():
                self._recorder.evaluation(name, step, groups)
            metrics |= evaluation.metrics
        return metrics | ({"time/evaluate_seconds": time.perf_counter() - started} if metrics else {})

    def _fill(self, folder: Path) -> None:
        self._pupil.engine.snapshot().write(folder)


_HELD_OUT = ("loss", "dpo/margin", "dpo/accuracy")
"""What is measured on held-out answers."""
