"""The loop: sample, score, train, publish; step after step, in one process."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from strop.algorithms.table import needs_greedy_answer
from strop.buffer.queue import Queue
from strop.config.schema import Run
from strop.config.units import Amount
from strop.errors import Interrupted, TrainingError
from strop.run.evaluate import evaluate
from strop.run.explorer import check_errors
from strop.run.folder import RunFolder, RunState
from strop.run.length import Length
from strop.run.policy import Policy
from strop.run.record import Recorder
from strop.run.rollout_metrics import training_metrics
from strop.run.sampling import sampling_of
from strop.run.tasks import Tasks
from strop.run.trainer import Trained, Trainer
from strop.training import checkpoint
from strop.types import ExperienceGroup, Group, Task
from strop.workflows.experiences import group_to_experiences


class Driver:
    """Runs the loop from the policy's state to the end, and keeps what the run file says to keep."""

    def __init__(
        self, run: Run, policy: Policy, tasks: Tasks, length: Length, folder: RunFolder, recorder: Recorder
    ) -> None:
        self._run = run
        self._policy = policy
        self._tasks = tasks
        self._length = length
        self._folder = folder
        self._recorder = recorder
        self._buffer = Queue()
        self._trainer = Trainer(policy.engine, run, length, policy.state.kl_coef)
        self._sampling = sampling_of(run.rollout.sampling, run.data.max_response_tokens)
        self._state = policy.state
        self._saved_step = policy.state.step
        self._save_seconds = 0.0

    def run(self) -> RunState:
        """Go to the end. On `Interrupted` the state between steps is saved first."""
        self._tasks.train.position = self._state.position
        try:
            if self._state.step == 0 and self._run.evaluate.at_start:
                self._recorder.step(0, self._evaluate(0))
            while self._state.step < self._length.steps:
                self._step(self._state.step + 1)
        except Interrupted as interrupted:
            self._save()
            raise Interrupted(
                f"{interrupted} The state after step {self._state.step} is in {self._folder.checkpoints}; "
                "the same command goes on from there.",
                interrupted.exit_code - 128,
            ) from None
        self._save()
        return self._state

    def _step(self, step: int) -> None:
        run, policy = self._run, self._policy
        started = time.perf_counter()
        tasks = self._tasks.train.take(run.trainer.tasks_per_step)
        explored = policy.explorer.run(
            tasks, run.algorithm.rollouts_per_task, self._sampling, purpose="train", step=step
        )
        check_errors(explored.groups, run.rollout.max_error_share)
        baselines = None
        if needs_greedy_answer(run.algorithm):
            baselines = self._greedy_rewards(tasks, explored.groups, step)
        learnable = [g for g in explored.groups if baselines is None or g.id in baselines]
        self._buffer.put([group_to_experiences(group) for group in learnable])
        experiences = self._buffer.take(len(learnable))
        trained = self._train(experiences, step, baselines)
        trained_at = time.perf_counter()
        policy.synchronizer.publish(step)
        ended = time.perf_counter()

        before = self._state
        updates, position = before.updates + trained.updates, self._tasks.train.position
        self._state = RunState(step, updates, position, self._trainer.kl_coef)
        metrics = training_metrics(explored.groups) | trained.metrics
        metrics |= {
            "epoch": step / self._length.steps_per_epoch,
            "version": float(step),
            "time/sample_seconds": explored.sample_seconds,
            "time/reward_seconds": explored.reward_seconds,
            "time/publish_seconds": ended - trained_at,
            "time/step_seconds": ended - started,
            "tokens_per_second": metrics.get("sampled_tokens", 0.0) / (ended - started),
        }
        if self._save_seconds:
            metrics["time/save_seconds"], self._save_seconds = self._save_seconds, 0.0
        if self._is_due(run.record.rollouts_every, before):
            self._recorder.rollouts(step, explored.groups)
        if self._is_due(run.evaluate.every, before) or step == self._length.steps:
            metrics |= self._evaluate(step)
        self._recorder.step(step, metrics)
        if self._is_due(run.checkpoint.every, before):
            self._save()

    def _greedy_rewards(self, tasks: Sequence[Task], groups: Sequence[Group], step: int) -> dict[str, float]:
        """By group, the reward of its task's greedy answer; a group whose greedy answer broke is left out."""
        greedy = replace(self._sampling, temperature=0.0)
        explored = self._policy.explorer.run(tasks, 1, greedy, purpose="greedy", step=step)
        check_errors(explored.groups, self._run.rollout.max_error_share)
        rewards = {
            group.id: answer.rollouts[0].reward for group, answer in zip(groups, explored.groups, strict=True)
        }
        return {group: reward for group, reward in rewards.items() if reward is not None}

    def _train(
        self, experiences: Sequence[ExperienceGroup], step: int, baselines: Mapping[str, float] | None
    ) -> Trained:
        updates = self._state.updates
        try:
            return self._trainer.step(experiences, step=step, updates_done=updates, baselines=baselines)
        except TrainingError as error:
            good, _ = checkpoint.latest(self._folder.checkpoints)
            kept = f"The last good checkpoint is {good}." if good else "There is no checkpoint yet."
            raise TrainingError(f"Step {step}: {error} {kept}") from error

    def _is_due(self, every: Amount | None, before: RunState) -> bool:
        return self._length.is_due(every, before, self._state)

    def _evaluate(self, step: int) -> dict[str, float]:
        if not self._tasks.eval:
            return {}
        evaluation = evaluate(self._run, self._policy.explorer, self._tasks.eval, step=step)
        for name, groups in evaluation.groups.items():
            self._recorder.evaluation(name, step, groups)
        return evaluation.metrics

    def _save(self) -> None:
        """Save the state between two steps, unless that is done already."""
        if self._state.step == self._saved_step:
            return
        started = time.perf_counter()
        keep = self._run.checkpoint.keep
        checkpoint.write(self._folder.checkpoints, self._state.step, self._fill, keep=keep)
        self._saved_step = self._state.step
        self._save_seconds = time.perf_counter() - started

    def _fill(self, folder: Path) -> None:
        self._policy.engine.save(folder)
        self._state.save(folder)
