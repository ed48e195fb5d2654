"""Callbacks of transformers in a run: their events are those of Strop's callbacks, or the callback is refused."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from strop.compat.trl.script.session import current_session
from strop.compat.trl.script.trained import evaluation

if TYPE_CHECKING:
    from collections.abc import Mapping

_EVENTS = ("on_init_end", "on_train_begin", "on_train_end", "on_step_end", "on_log", "on_evaluate", "on_save")
"""Events that Strop has."""
_OTHER_EVENTS = (
    *("on_epoch_begin", "on_epoch_end", "on_step_begin", "on_substep_end", "on_pre_optimizer_step"),
    *("on_optimizer_step", "on_predict", "on_prediction_step", "on_push_begin"),
)


def events_of(callback: Any) -> tuple[str, ...]:
    """The events that a callback handles. Raises ConfigError for one that is no callback, or handles another event."""
    from transformers import TrainerCallback

    session, name = current_session(), type(callback).__name__
    if not isinstance(callback, TrainerCallback):
        raise session.error(
            f"callbacks has a {name}; write an object of a subclass of transformers' TrainerCallback."
        )
    own = [
        event
        for event in (*_EVENTS, *_OTHER_EVENTS)
        if getattr(type(callback), event, None) is not getattr(TrainerCallback, event, None)
    ]
    if others := [event for event in own if event in _OTHER_EVENTS]:
        raise session.error(
            f"the callback {name} handles {others[0]}, which Strop does not call; it calls {', '.join(_EVENTS)}. "
            "strop.Callback has Strop's own events (`strop help library`)."
        )
    return tuple(own)


class CallbackAdapter:
    """A callback of transformers as one of Strop's: a step is one call of `on_step_end` and `on_log`.

    `state` counts updates. Of `control`, `should_training_stop` stops the run; a callback that asks for an evaluation
    or a checkpoint ends the run with an error.
    """

    def __init__(self, callback: Any, trainer: Any) -> None:
        from transformers import TrainerControl

        self._callback, self._trainer = callback, trainer
        self._events = events_of(callback)
        self._control = TrainerControl()
        self._run: Any = None
        self._call("on_init_end")

    def on_start(self, control: Any) -> None:
        """`on_train_begin`."""
        self._run = control
        self._call("on_train_begin")

    def on_step(self, metrics: Mapping[str, float]) -> None:
        """`on_step_end` and `on_log`. The first callback of a trainer adds the step to the shared state."""
        state = self._trainer.state
        if metrics.get("step") != self._trainer.last_step:
            self._trainer.last_step = metrics.get("step")
            state.add(metrics)
        self._call("on_step_end")
        self._call("on_log", logs=state.log_history[-1])

    def on_evaluate(self, name: str, metrics: Mapping[str, float]) -> None:
        """`on_evaluate`."""
        self._call("on_evaluate", metrics=evaluation(metrics))

    def on_save(self, path: Path) -> None:
        """`on_save`."""
        self._call("on_save")

    def on_end(self) -> None:
        """`on_train_end`, after the run."""
        self._call("on_train_end")

    def _call(self, event: str, **values: Any) -> None:
        if event not in self._events:
            return
        trainer, control = self._trainer, self._control
        returned = getattr(self._callback, event)(
            trainer.args,
            trainer.state,
            control,
            model=trainer.model,
            processing_class=trainer.processing_class,
            **values,
        )
        self._control = control if returned is None else returned
        if self._control.should_save or self._control.should_evaluate:
            asked = "should_save" if self._control.should_save else "should_evaluate"
            raise current_session().error(
                f"the callback {type(self._callback).__name__} sets {asked}, which Strop does not do; write "
                "save_steps or "
                "eval_steps."
            )
        if self._control.should_training_stop and self._run is not None:
            self._run.stop()
            self._run = None
