"""The loop: sample, score, train, publish; step after step, in one process."""

from __future__ import annotations

import time

from strop.config.schema import Run
from strop.config.schema.algorithm import RolloutAlgorithm
from strop.protocols import Buffer
from strop.run.collect import Collector
from strop.run.critic import Critic
from strop.run.evaluate import evaluate
from strop.run.folder import RunFolder
from strop.run.learning import Learning
from strop.run.length import Length
from strop.run.loop import Loop, Stepped
from strop.run.policy import Policy
from strop.run.rates import Rates
from strop.run.records.record import Recorder
from strop.run.rollout_metrics import training_metrics
from strop.run.saving import Snapshots
from strop.run.tasks import Tasks
from strop.run.trainer import Trained


class Driver(Loop):
    """Learns from the model's own rollouts, and under mix from an expert's answers beside them."""

    def __init__(
        self,
        run: Run,
        algorithm: RolloutAlgorithm,
        *,
        policy: Policy,
        critic: Critic | None,
        buffer: Buffer,
        tasks: Tasks,
        length: Length,
        folder: RunFolder,
        recorder: Recorder,
    ) -> None:
        super().__init__(run, policy.state, length, folder, recorder)
        self._policy = policy
        self._tasks = tasks
        self._buffer = buffer
        self._learning = Learning(
            run, algorithm, policy.engine, critic, tasks.auxiliary, length, policy.state
        )
        self._collector = Collector(run, algorithm, policy.explorer, tasks.train)
        tasks.train.position = policy.state.position

    @property
    def _rates(self) -> Rates:
        return self._learning.rates

    def _learn(self, step: int) -> Stepped:
        warmed_up = self._learning.warm_up(step, self._state.updates)
        return self._learn_from_rollouts(step) if warmed_up is None else self._warmed_up(step, warmed_up)

    def _warmed_up(self, step: int, trained: Trained) -> Stepped:
        self._policy.stop.check()
        self._policy.synchronizer.publish(step)
        state = self._learning.state(step, self._state.updates + trained.updates, self._tasks.train.position)
        return Stepped(state, trained.metrics)

    def _learn_from_rollouts(self, step: int) -> Stepped:
        started = time.perf_counter()
        collected = self._collector.collect(step)
        self._buffer.put(collected.learnable)
        groups = self._buffer.take(len(collected.learnable))
        trained = self._learning.step(groups, step, self._state.updates)
        self._buffer.acknowledge([group.id for group in groups])
        trained_at = time.perf_counter()
        self._policy.synchronizer.publish(step)
        ended = time.perf_counter()

        metrics = training_metrics(collected.sampled) | collected.metrics | trained.metrics
        metrics |= {
            "time/publish_seconds": ended - trained_at,
            "time/step_seconds": ended - started,
            "tokens_per_second": metrics.get("sampled_tokens", 0.0) / (ended - started),
        }
        state = self._learning.state(step, self._state.updates + trained.updates, self._tasks.train.position)
        return Stepped(state, metrics, collected.sampled)

    def _evaluate(self, step: int) -> dict[str, float]:
        if not self._tasks.eval:
            return {}
        evaluation = evaluate(self._run, self._policy.explorer, self._tasks.eval, step=step)
        for name, groups in evaluation.groups.items():
            self._recorder.evaluation(name, step, groups)
        return evaluation.metrics

    def _snapshot(self) -> Snapshots:
        return self._learning.snapshot()
