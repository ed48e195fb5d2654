"""Evaluation of the eval tasksets by the reward of sampled responses, recorded and reported to callbacks."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from strop.config.schema.run import Run, effective_reward
from strop.run.drivers.callbacks import CallbackList
from strop.run.recording.recorder import Recorder
from strop.run.rollout.explorer import Explorer, check_error_fraction
from strop.run.rollout.rollout_metrics import evaluation_metrics
from strop.run.rollout.rollout_services import sampling_params
from strop.run.rollout.tasks import EvalTasksets
from strop.runs.held_out_scores import HeldOutScores
from strop.types import RolloutGroup


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Metrics and rollouts of an evaluation of all eval tasksets."""

    metrics: dict[str, float]
    groups: Mapping[str, list[RolloutGroup]]
    """Groups by name of the taskset."""
    scores: Sequence[HeldOutScores] = ()
    """Scores of the tasksets of a reward model."""


def evaluate(run: Run, explorer: Explorer, tasksets: EvalTasksets, step: int) -> Evaluation:
    """Sample and score every eval task with the current weights.

    Raises `RolloutError` if too many rollouts of a taskset fail.
    """
    started = time.perf_counter()
    metrics: dict[str, float] = {}
    groups: dict[str, list[RolloutGroup]] = {}
    for section, taskset in tasksets:
        explored = explorer.run(
            taskset.all_tasks(),
            section.rollouts_per_task,
            sampling_params(section.sampling, run.data.max_response_tokens),
            purpose=f"eval-{section.name}",
            step=step,
        )
        check_error_fraction(explored.groups, run.rollout.max_error_fraction)
        groups[section.name] = explored.groups
        reward = section.reward or effective_reward(run)
        metrics |= evaluation_metrics(section.name, explored.groups, reward.correct_at)
    metrics["time/evaluate_seconds"] = time.perf_counter() - started
    return Evaluation(metrics, groups)


class Evaluator:
    """Evaluates, writes the rollouts of each taskset to the run folder and calls `on_evaluate`."""

    def __init__(
        self,
        evaluate: Callable[[int], Evaluation],
        recorder: Recorder,
        callbacks: CallbackList | None = None,
    ) -> None:
        """`evaluate(step)` measures all tasksets with the current weights, which are those of `step`."""
        self._evaluate = evaluate
        self._recorder = recorder
        self._callbacks = callbacks or CallbackList(())

    def evaluate(self, step: int) -> dict[str, float]:
        """Evaluate all tasksets and add their metrics to the row of `step`; returns these metrics."""
        evaluation = self._evaluate(step)
        for name, groups in evaluation.groups.items():
            self._recorder.log_evaluation(name, step, groups)
        if evaluation.scores:
            self._recorder.log_held_out_scores(evaluation.scores)
        self._recorder.add_to_step(step, evaluation.metrics)
        self._callbacks.on_evaluate(step, evaluation.metrics)
        return evaluation.metrics
