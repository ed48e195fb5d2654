"""What a driver of rollouts learns with: the policy's trainer, and a critic and an expert where there are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from strop.config.schema import Run
from strop.config.schema.algorithm import Mix, RolloutAlgorithm
from strop.config.schema.sample import WarmUpSample
from strop.data.answers import AnswerSet
from strop.protocols import TrainingEngine
from strop.run.critic import FOLDER, Critic
from strop.run.expert import ExpertRows
from strop.run.folder import RunState
from strop.run.length import Length
from strop.run.rates import Rates
from strop.run.saving import Snapshots, engines_together
from strop.run.trainer import Trained, Trainer
from strop.run.warm_up import WarmUp
from strop.types import ExperienceGroup


class Learning:
    """A step's groups become new weights, from a state on."""

    def __init__(
        self,
        run: Run,
        algorithm: RolloutAlgorithm,
        engine: TrainingEngine,
        critic: Critic | None,
        auxiliary: Mapping[str, AnswerSet],
        length: Length,
        state: RunState,
    ) -> None:
        """`auxiliary` are the sets of given answers, by name."""
        self.engine = engine
        self._run = run
        self._critic = critic
        self._expert = None
        if isinstance(algorithm, Mix):
            answers = auxiliary[run.data.answers_of(algorithm.expert).name]
            self._expert = ExpertRows(answers, algorithm, run.trainer)
            self._expert.position = state.expert_position
        self._trainer = Trainer(
            engine, run, algorithm, length, kl_coef=state.kl_coef, critic=critic, expert=self._expert
        )

        self._warm_up = None
        sample = run.trainer.sample
        if isinstance(sample, WarmUpSample):
            answers = auxiliary[run.data.answers_of(sample.answers).name]
            self._warm_up = WarmUp(engine, run, algorithm, sample, answers, length, self.rates)

    @property
    def rates(self) -> Rates:
        """Of the policy's updates."""
        return self._trainer.rates

    def warm_up(self, step: int, updates_done: int) -> Trained | None:
        """Train on the given answers of a step of the warm-up; None for one that has rollouts."""
        if self._warm_up is None or step > self._warm_up.steps:
            return None
        return self._warm_up.step(step, updates_done)

    def step(self, groups: Sequence[ExperienceGroup], step: int, updates_done: int) -> Trained:
        """Train on all groups of one step."""
        return self._trainer.step(groups, step=step, updates_done=updates_done)

    def state(self, step: int, updates: int, position: int) -> RunState:
        """Where the run stands after a step, with `updates` done in all and `position` tasks taken."""
        return RunState(
            step=step,
            updates=updates,
            position=position,
            kl_coef=self._trainer.kl_coef,
            expert_position=self._expert.position if self._expert else 0,
        )

    def snapshot(self) -> Snapshots:
        """What learns, for a checkpoint."""
        policy = Snapshots({".": self.engine.snapshot()}, together=engines_together(self._run))
        return policy if self._critic is None else policy.beside(FOLDER, self._critic.snapshot())
