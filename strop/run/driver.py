"""The loop: sample, score, train, publish; step after step, in one process."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from strop.algorithms.table import needs_greedy_answer
from strop.buffer.queue import Queue
from strop.config.schema import Run
from strop.config.schema.algorithm import Mix, RolloutAlgorithm
from strop.run.critic import Critic
from strop.run.evaluate import evaluate
from strop.run.expert import ExpertRows
from strop.run.explorer import check_errors
from strop.run.folder import RunFolder, RunState
from strop.run.length import Length
from strop.run.loop import Loop, Stepped
from strop.run.policy import Policy
from strop.run.record import Recorder
from strop.run.rollout_metrics import training_metrics
from strop.run.sampling import sampling_of
from strop.run.tasks import Tasks
from strop.run.trainer import Trainer
from strop.types import Group, Task
from strop.workflows.experiences import group_to_experiences


class Driver(Loop):
    """Learns from the model's own rollouts, and under mix from an expert's answers beside them."""

    def __init__(
        self,
        run: Run,
        algorithm: RolloutAlgorithm,
        *,
        policy: Policy,
        critic: Critic | None,
        tasks: Tasks,
        length: Length,
        folder: RunFolder,
        recorder: Recorder,
    ) -> None:
        super().__init__(run, policy.state, length, folder, recorder)
        self._algorithm = algorithm
        self._policy = policy
        self._tasks = tasks
        self._buffer = Queue()
        self._critic = critic
        self._expert = None
        if isinstance(algorithm, Mix) and tasks.expert is not None:
            self._expert = ExpertRows(tasks.expert, algorithm, run.trainer)
            self._expert.position = policy.state.expert_position
        self._trainer = Trainer(
            policy.engine,
            run,
            algorithm,
            length,
            kl_coef=policy.state.kl_coef,
            critic=critic,
            expert=self._expert,
        )
        self._sampling = sampling_of(run.rollout.sampling, run.data.max_response_tokens)
        tasks.train.position = policy.state.position

    def _learn(self, step: int) -> Stepped:
        run, policy = self._run, self._policy
        started = time.perf_counter()
        tasks = self._tasks.train.take(run.trainer.tasks_per_step)
        explored = policy.explorer.run(
            tasks, self._algorithm.rollouts_per_task, self._sampling, purpose="train", step=step
        )
        check_errors(explored.groups, run.rollout.max_error_share)
        baselines = None
        if needs_greedy_answer(self._algorithm):
            baselines = self._greedy_rewards(tasks, explored.groups, step)
        learnable = [g for g in explored.groups if baselines is None or g.id in baselines]
        self._buffer.put([group_to_experiences(group) for group in learnable])
        experiences = self._buffer.take(len(learnable))
        trained = self._trainer.step(
            experiences, step=step, updates_done=self._state.updates, baselines=baselines
        )
        trained_at = time.perf_counter()
        policy.synchronizer.publish(step)
        ended = time.perf_counter()

        metrics = training_metrics(explored.groups) | trained.metrics
        metrics |= {
            "time/sample_seconds": explored.sample_seconds,
            "time/reward_seconds": explored.reward_seconds,
            "time/publish_seconds": ended - trained_at,
            "time/step_seconds": ended - started,
            "tokens_per_second": metrics.get("sampled_tokens", 0.0) / (ended - started),
        }
        state = RunState(
            step=step,
            updates=self._state.updates + trained.updates,
            position=self._tasks.train.position,
            kl_coef=self._trainer.kl_coef,
            expert_position=self._expert.position if self._expert else 0,
        )
        return Stepped(state, metrics, explored.groups)

    def _greedy_rewards(self, tasks: Sequence[Task], groups: Sequence[Group], step: int) -> dict[str, float]:
        """By group, the reward of its task's greedy answer; a group whose greedy answer broke is left out."""
        greedy = replace(self._sampling, temperature=0.0)
        explored = self._policy.explorer.run(tasks, 1, greedy, purpose="greedy", step=step)
        check_errors(explored.groups, self._run.rollout.max_error_share)
        rewards = {
            group.id: answer.rollouts[0].reward for group, answer in zip(groups, explored.groups, strict=True)
        }
        return {group: reward for group, reward in rewards.items() if reward is not None}

    def _evaluate(self, step: int) -> dict[str, float]:
        if not self._tasks.eval:
            return {}
        evaluation = evaluate(self._run, self._policy.explorer, self._tasks.eval, step=step)
        for name, groups in evaluation.groups.items():
            self._recorder.evaluation(name, step, groups)
        return evaluation.metrics

    def _fill(self, folder: Path) -> None:
        self._policy.engine.save(folder)
        if self._critic is not None:
            self._critic.save(folder)
