"""The training loop: take a step's batch, update, publish the weights to the sampler, in this process or in a separate
explorer; evaluate, record and save when due."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import final

from strop.config.schema.record import EvaluateConfig, RecordConfig
from strop.config.units import Amount
from strop.errors import Interrupted, TrainingError
from strop.protocols import EngineSnapshot, TrainingEngine
from strop.run.drivers.batch_source import BatchSource
from strop.run.drivers.callbacks import CallbackList, RunControl
from strop.run.drivers.evaluation import Evaluation, Evaluator
from strop.run.optimize.policy_optimizer import LrSchedule, Updater, UpdateResult
from strop.run.recording.recorder import Recorder
from strop.run.state.checkpoint_manager import CheckpointManager
from strop.run.state.horizon import Horizon
from strop.run.state.run_state import RunState
from strop.run.state.tracked_metric import BestCheckpointRule, EarlyStopRule
from strop.runs.training_examples import TrainingExample
from strop.sync.publish import Publisher
from strop.workers.cleanup import cleanup
from strop.workers.signals import StopSignal


@dataclass(frozen=True, slots=True)
class TrainPhase:
    """Consecutive steps that train on one kind of data: the SFT warm-up, or the rest of the run."""

    source: BatchSource
    updater: Updater
    last_step: int


@dataclass(frozen=True, slots=True)
class TrainSetup:
    """Everything that an algorithm family and a topology contribute to the training loop, ready to start."""

    engine: TrainingEngine
    """The policy's engine, which also exports the trained model."""
    state: RunState
    """State to start from."""
    horizon: Horizon
    phases: Sequence[TrainPhase]
    """In the order of their steps; the last one ends with the run."""
    lr_schedule: LrSchedule
    """Schedule of the policy's updates, which evaluations may change."""
    snapshot: Callable[[], EngineSnapshot]
    """Takes a snapshot of all engines between two steps."""
    publisher: Publisher | None
    """Receives the weights after each step; None where nothing samples during training."""
    evaluate: Callable[[int], Evaluation] | None
    """Evaluates the weights of a step; None where there is no eval taskset, or the explorer evaluates."""
    stop: StopSignal
    """Requests to stop the run."""
    notes: tuple[str, ...]
    examples: tuple[TrainingExample, ...] = field(default=(), kw_only=True)
    """First rows of SFT and DPO as text."""
    """Messages about data, engines and placement, for the start of the log."""


@final
class TrainLoop:
    """Runs steps from a state to the end of the run.

    Consumes    the batches of the phases' sources.
    Waits for   the next batch, evaluations, and the checkpoint before when the next one is saved.
    Unblocked   by the source; by a stop request, after which it saves its state.
    """

    def __init__(
        self,
        setup: TrainSetup,
        *,
        evaluate: EvaluateConfig,
        record: RecordConfig,
        best: BestCheckpointRule | None,
        early_stop: EarlyStopRule | None,
        checkpoint_every: Amount | None,
        checkpoints: CheckpointManager,
        recorder: Recorder,
        callbacks: CallbackList,
    ) -> None:
        """
        Args:
            setup: data, engines and state.
            evaluate: the section `evaluate`.
            record: the section `record`.
            best: which evaluation is the best; None where `checkpoint.best` is not set.
            early_stop: which evaluation ends the run; None where `evaluate.stop_when` is not set.
            checkpoint_every: `checkpoint.every`.
            checkpoints: writes checkpoints.
            recorder: writes metrics and rollouts.
            callbacks: the user's callbacks.
        """
        self._setup = setup
        self._horizon = setup.horizon
        self._evaluate_section = evaluate
        self._record_section = record
        self._best = best
        self._early_stop = early_stop
        self._checkpoint_every = checkpoint_every
        self._checkpoints = checkpoints
        self._recorder = recorder
        self._callbacks = callbacks
        self._evaluator = None if setup.evaluate is None else Evaluator(setup.evaluate, recorder, callbacks)
        restored = None if best is None else best.restore(setup.state.best, checkpoints.root)
        self._state = replace(setup.state, best=restored)

    @property
    def state(self) -> RunState:
        """State after the last completed step."""
        return self._state

    def run(self) -> RunState:
        """Run to the end. On `Interrupted` the state between two steps is saved first."""
        setup = self._setup
        setup.lr_schedule.plateau = self._state.plateau
        for phase in setup.phases:
            phase.source.load_state(self._state)
            phase.updater.load_state(self._state)
        if setup.publisher is not None:
            setup.publisher.start(self._state.step, self._state.group_offset)
        with cleanup(self._checkpoints.close):
            self._callbacks.on_start(RunControl(setup.stop))
            try:
                if self._state.step == 0 and self._evaluate_section.at_start:
                    self._evaluate_initial()
                if self._state.evaluation_pending:
                    self._evaluate_after_step()
                    self._callbacks.on_step(self._recorder.last)
                while self._continues() and self._step(self._state.step + 1):
                    pass
            except Interrupted as interrupted:
                self._save()
                self._checkpoints.wait()
                raise Interrupted(
                    f"{interrupted} {self._resume_hint()}", interrupted.exit_code - 128
                ) from None
            self._save()
            self._checkpoints.wait()
        if setup.publisher is not None:
            setup.publisher.finish()
        for phase in setup.phases:
            message = phase.source.finish(self._state, self._horizon.steps)
            if message is not None:
                self._recorder.log_message(message)
        return self._state

    def _continues(self) -> bool:
        """Whether there is a next step; an early end is logged."""
        if self._state.step >= self._horizon.steps:
            return False
        reason = self._early_stop.reason(self._state.evaluations) if self._early_stop else None
        if reason is not None:
            self._recorder.log_message(
                f"The run ends after step {self._state.step} of {self._horizon.steps}: {reason}."
            )
        return reason is None

    def _resume_hint(self) -> str:
        if self._state.step == 0:
            return "No step was completed; the same command starts again."
        return (
            f"The state after step {self._state.step} is in {self._checkpoints.root}; the same command "
            "continues from there."
        )

    def _step(self, step: int) -> bool:
        """Train one step, then evaluate, record and save what is due; False where no batch is left."""
        self._setup.stop.check()
        self._checkpoints.poll()
        before, publisher = self._state, self._setup.publisher
        started = time.perf_counter()
        phase = next(phase for phase in self._setup.phases if step <= phase.last_step)
        with self._failures_named(step):
            batch = phase.source.next_batch(step)
            if batch is None:
                return False
            fetched = time.perf_counter()
            if batch.rollouts:
                self._callbacks.on_rollouts(batch.rollouts)
            if publisher is not None:
                publisher.begin_update()
            result = phase.updater.update(batch, step=step, updates_done=before.updates)
            phase.source.mark_trained(batch)
            metrics = batch.metrics | result.metrics
            if phase.source.wait_metric is not None:
                metrics[phase.source.wait_metric] = fetched - started
            if publisher is not None:
                trained = time.perf_counter()
                metrics |= publisher.publish(step)
                metrics["time/publish_seconds"] = time.perf_counter() - trained
        metrics["time/step_seconds"] = time.perf_counter() - started
        if batch.rollouts:
            sampled_tokens = metrics.get("sampled_tokens", 0.0)
            metrics["tokens_per_second"] = sampled_tokens / metrics["time/step_seconds"]
        self._state = self._state_after(step, result)
        metrics |= {"epoch": step / self._horizon.steps_per_epoch, "version": float(step)}
        if save_seconds := self._checkpoints.take_save_seconds():
            metrics["time/save_seconds"] = save_seconds
        all_due = self._records_all_rollouts(step, before)
        if groups := self._recorder.groups_to_write(step, batch.rollouts, all_due=all_due):
            self._recorder.log_rollouts(step, groups, result.rollout_advantages())
        self._recorder.log_step(step, metrics)
        is_end = step == self._horizon.steps and self._evaluate_section.at_end
        evaluates = is_end or self._is_due(self._evaluate_section.every, before)
        if evaluates:
            self._evaluate_after_step()
        self._callbacks.on_step(self._recorder.last)
        if self._is_due(self._checkpoint_every, before) or (evaluates and self._best is not None):
            self._save()
        return True

    @contextmanager
    def _failures_named(self, step: int) -> Iterator[None]:
        """A TrainingError names the step, and the checkpoint that a restart continues from."""
        try:
            yield
        except TrainingError as error:
            latest = self._checkpoints.latest()
            hint = f"The last good checkpoint is {latest}." if latest else "There is no checkpoint yet."
            raise type(error)(f"Step {step}: {error} {hint}") from error

    def _state_after(self, step: int, result: UpdateResult) -> RunState:
        state = replace(self._state, step=step, updates=self._state.updates + result.updates)
        for phase in self._setup.phases:
            state = phase.updater.save_state(phase.source.save_state(state))
        return state

    def _evaluate_initial(self) -> None:
        if self._evaluator is None:
            self._recorder.log_step(0, {})
        else:
            self._evaluator.evaluate(0)

    def _evaluate_after_step(self) -> None:
        """Evaluate, and update the plateau and the best checkpoint; a run stopped meanwhile evaluates again."""
        state = self._state = replace(self._state, evaluation_pending=True)
        metrics = {} if self._evaluator is None else self._evaluator.evaluate(state.step)
        schedule = self._setup.lr_schedule
        schedule.observe_evaluation(metrics)
        best = None if self._best is None else self._best.update(state.best, state.step, metrics)
        stop, evaluations = self._early_stop, state.evaluations
        self._state = replace(
            state,
            plateau=schedule.plateau,
            best=best,
            evaluations=evaluations if stop is None else stop.update(evaluations, metrics),
            evaluation_pending=False,
        )

    def _records_all_rollouts(self, step: int, before: RunState) -> bool:
        *warm_up, _ = self._setup.phases
        ends = (1 + max((phase.last_step for phase in warm_up), default=0), self._horizon.steps)
        section = self._record_section
        return (section.first_and_last_rollouts and step in ends) or self._is_due(
            section.rollouts_every, before
        )

    def _is_due(self, every: Amount | None, before: RunState) -> bool:
        return self._horizon.is_due(every, before, self._state)

    def _save(self) -> None:
        """Save the state between two steps, unless it is saved already."""
        if self._checkpoints.is_saved(self._state):
            return
        step = self._state.step
        released = [phase.source.release(self._state) for phase in self._setup.phases]

        def complete(path: Path) -> None:
            for acknowledge in released:
                acknowledge()
            self._recorder.log_checkpoint(step)
            self._callbacks.on_save(path)

        self._checkpoints.save(self._state, complete)
