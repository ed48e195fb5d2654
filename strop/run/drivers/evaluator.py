"""Evaluation of the eval tasksets with the current weights, recorded and reported to callbacks."""

from __future__ import annotations

from collections.abc import Callable

from strop.run.drivers.callbacks import CallbackList
from strop.run.recording.recorder import Recorder
from strop.run.rollout.evaluation import Evaluation


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
        self._recorder.add_to_step(step, evaluation.metrics)
        self._callbacks.on_evaluate(step, evaluation.metrics)
        return evaluation.metrics
