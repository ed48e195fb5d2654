"""State, evaluations and records of an explorer process, whatever order it samples in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from strop.config.schema import Run
from strop.config.units import Amount
from strop.run.drivers.evaluator import Evaluator
from strop.run.recording.recorder import Recorder
from strop.run.rollout.evaluation import evaluate
from strop.run.rollout.explorer import Explorer
from strop.run.rollout.rollout_metrics import training_metrics
from strop.run.rollout.tasks import EvalTasksets
from strop.run.state.explorer_state import ExplorerState
from strop.run.state.horizon import Horizon
from strop.run.state.run_state import RunState
from strop.runs.folder import RunFolder
from strop.types import RolloutGroup


class TrainerEnded(Exception):
    """Raised by a wait for free capacity in the buffer: the trainer has ended and will take no more groups."""


class ExplorerProgress:
    """Saves the explorer's state, evaluates versions of the weights, and records steps."""

    def __init__(
        self,
        run: Run,
        explorer: Explorer,
        tasksets: EvalTasksets,
        state: ExplorerState,
        horizon: Horizon,
        folder: RunFolder,
        recorder: Recorder,
        sampler_metrics: Callable[[], Mapping[str, float]],
    ) -> None:
        """`folder` is the explorer's own; `sampler_metrics` returns those of the sampler since its last call."""
        self.state = state
        self._run = run
        self._tasksets = tasksets
        self._evaluator = Evaluator(lambda step: evaluate(run, explorer, tasksets, step=step), recorder)
        self._horizon = horizon
        self._folder = folder
        self._recorder = recorder
        self._sampler_metrics = sampler_metrics

    def save(self, state: ExplorerState) -> None:
        """Replace the state, on disk too."""
        state.save(self._folder)
        self.state = state

    def evaluate_if_due(self, version: int) -> None:
        """Evaluate the weights that the sampler has, if the `evaluate` section schedules it.

        Versions come in increasing order, with gaps.
        """
        if not self._tasksets:
            return
        evaluated = self.state.evaluated_version
        if evaluated is None and version == 0:
            due = self._run.evaluate.at_start
        else:
            due = self._is_due(self._run.evaluate.every, evaluated or 0, version)
        if due:
            self.evaluate(version)

    def evaluate(self, version: int) -> None:
        """Evaluate the weights that the sampler has, and record the result."""
        self._evaluator.evaluate(version)
        self.save(replace(self.state, evaluated_version=version))

    def record(self, step: int, sampled: Sequence[RolloutGroup], metrics: dict[str, float]) -> None:
        """Record a step's rollouts and metrics; `metrics` has its durations."""
        section = self._run.record
        is_end = step in (1 + self._run.trainer.warmup_steps, self._horizon.steps)
        is_due = self._is_due(section.rollouts_every, step - 1, step)
        all_due = is_due or (section.first_and_last_rollouts and is_end)
        if groups := self._recorder.groups_to_write(step, sampled, all_due=all_due):
            self._recorder.log_rollouts(step, groups)
        metrics = {**training_metrics(sampled), **self._sampler_metrics(), **metrics}
        seconds = metrics["time/explore_seconds"]
        metrics["tokens_per_second"] = metrics.get("sampled_tokens", 0.0) / seconds
        self._recorder.log_step(step, metrics)

    def _is_due(self, every: Amount | None, before: int, after: int) -> bool:
        return self._horizon.is_due(every, self._at(before), self._at(after))

    def _at(self, step: int) -> RunState:
        return RunState(step, step * self._horizon.updates_per_step)
