"""The first steps of a run that warms up: given answers, learned by sft's loss before any rollouts."""

from __future__ import annotations

import time

from strop.config.schema import Run
from strop.config.schema.algorithm import RolloutAlgorithm, Sft
from strop.config.schema.sample import WarmUpSample
from strop.data.answers import AnswerSet
from strop.protocols import TrainingEngine
from strop.run.length import Length
from strop.run.policy_updates import PolicyUpdates, means
from strop.run.rates import Rates
from strop.run.trainer import Trained
from strop.types import ExperienceGroup


class WarmUp:
    """Has no state: which answers an update learns from is a function of its number."""

    def __init__(
        self,
        engine: TrainingEngine,
        run: Run,
        algorithm: RolloutAlgorithm,
        section: WarmUpSample,
        answers: AnswerSet,
        length: Length,
        rates: Rates,
    ) -> None:
        """`rates` are those of all the run's updates."""
        tasks = run.trainer.tasks_per_update or run.trainer.tasks_per_step
        self.steps = int(section.steps.count)
        self._per_update = section.answers_per_update or tasks * algorithm.rollouts_per_task
        self._answers = answers.afresh()
        self._length = length
        self._updates = PolicyUpdates(engine, run.model_copy(update={"algorithm": Sft()}), rates)

    def step(self, step: int, updates_done: int) -> Trained:
        """Learn from the answers of step `step`, one of the first `steps`."""
        started = time.perf_counter()
        rows, tokens = [], 0
        for number in range(self._length.updates_per_step):
            groups = self._take((step - 1) * self._length.updates_per_step + number)
            experiences = [experience for group in groups for experience in group.experiences]
            tokens += sum(len(experience.token_ids) for experience in experiences)
            nothing = [0.0] * len(experiences)
            rows.append(
                self._updates.update(
                    experiences, nothing, None, None, step=step, update=updates_done + number
                )
            )
        seconds = time.perf_counter() - started
        return Trained(
            len(rows),
            means(rows)
            | {
                "updates": float(len(rows)),
                "trained_tokens": float(tokens),
                "tokens_per_second": tokens / seconds,
                "time/update_seconds": seconds,
            },
        )

    def _take(self, update: int) -> list[ExperienceGroup]:
        """The answers of the warm-up's update `update`, from 0."""
        epoch, number = divmod(update, self._answers.steps_per_epoch(self._per_update))
        self._answers.position = epoch * len(self._answers) + number * self._per_update
        return self._answers.take(self._per_update)
