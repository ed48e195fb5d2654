"""Results that a script sees: events of its callbacks, the state, metrics by TRL's names, and the trained model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from strop.compat.trl.script.recording import own_functions
from strop.compat.trl.script.session import ScriptSession, current_session

if TYPE_CHECKING:
    from strop.run.entry.start import RunResult


_TRL_NAMES = {
    "loss": "loss",
    "lr": "learning_rate",
    "grad_norm": "grad_norm",
    "epoch": "epoch",
    "reward/mean": "reward",
    "reward/std": "reward_std",
}
"""TRL's names of metrics."""
_MANIFEST = "manifest.json"


@contextmanager
def own_work(session: ScriptSession) -> Iterator[None]:
    """A block in which Strop works, and not the script: nothing is recorded, and its exceptions are its own."""
    session.is_recording = False
    try:
        with own_functions():
            yield
    except Exception as error:
        session.failure = error
        raise
    finally:
        session.is_recording = True


def named_as_in_trl(row: Mapping[str, float]) -> dict[str, float]:
    """A row of metrics.jsonl, with TRL's names besides Strop's."""
    named = {new: row[old] for old, new in _TRL_NAMES.items() if old in row}
    return {
        **row,
        **named,
        **evaluation({key: value for key, value in row.items() if key.startswith("eval/")}),
    }


def evaluation(metrics: Mapping[str, float]) -> dict[str, float]:
    """Metrics of eval tasksets by TRL's names: `eval_loss`, or `eval_<name>_loss` of several datasets."""
    found: dict[str, float] = {}
    for key, value in metrics.items():
        _, _, rest = key.partition("eval/")
        name, _, metric = rest.partition("/")
        if metric:
            prefix = "eval" if name == "eval" else f"eval_{name}"
            found[f"{prefix}_{metric.replace('/', '_')}"] = value
    return found


@dataclass
class TrainedState:
    """The part of transformers' TrainerState that a script reads."""

    global_step: int = 0
    """Number of updates."""
    epoch: float = 0.0
    log_history: list[dict[str, float]] = field(default_factory=list)
    """A row per step, with Strop's names of metrics and TRL's."""
    best_model_checkpoint: str | None = None
    max_steps: int = 0
    is_world_process_zero: bool = True
    is_local_process_zero: bool = True

    def add(self, row: Mapping[str, float]) -> None:
        """Add the metrics of a step."""
        self.global_step += int(row.get("updates", 0))
        self.epoch = float(row.get("epoch", self.epoch))
        self.log_history.append(named_as_in_trl(row))

    def finish(self, result: RunResult) -> None:
        """Take over the rows of the whole run, earlier starts included."""
        self.global_step, self.log_history = 0, []
        for row in result.history():
            self.add(row)
        self.max_steps = self.global_step


class TrainOutput(NamedTuple):
    """Result of `train()`, as in transformers."""

    global_step: int
    training_loss: float
    metrics: dict[str, float]

    @classmethod
    def of(cls, result: RunResult, state: TrainedState) -> TrainOutput:
        """The number of updates, the mean loss, and the metrics of the last step."""
        losses = [row["loss"] for row in state.log_history if "loss" in row]
        mean = sum(losses) / len(losses) if losses else 0.0
        return cls(state.global_step, mean, {"train_loss": mean, **named_as_in_trl(result.metrics)})


class Accelerator:
    """The part of accelerate's Accelerator that a script reads; there is one process."""

    is_main_process = is_local_main_process = True
    process_index = local_process_index = 0
    num_processes = 1

    def print(self, *values: Any, **options: Any) -> None:
        """Print."""
        print(*values, **options)

    def wait_for_everyone(self) -> None:
        """Nothing: there is one process."""

    def __getattr__(self, name: str) -> Any:
        raise current_session().error(
            f"trainer.accelerator.{name} is not available: Strop trains with its own loop."
        )


class TrainedModel:
    """The model of a trainer after training: its folder, which can be copied and loaded."""

    def __init__(self, result: RunResult, tokenizer: Any) -> None:
        self.name_or_path = str(result.model)
        self._result = result

    def save_pretrained(self, save_directory: str | Path, **options: Any) -> None:
        """Copy the trained model to a folder."""
        for name in options:
            current_session().note(f"save_pretrained: {name} has no effect; the folder is copied.")
        save_model(self._result, save_directory)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise current_session().error(
            f"model.{name} is not available after training; load the trained model from {self.name_or_path}, or write "
            "strop generate."
        )


def save_model(result: RunResult | None, folder: str | Path | None) -> None:
    """Copy the trained model to a folder. Raises ConfigError before training, and where the run wrote no model."""
    session = current_session()
    if result is None or result.model is None:
        raise session.error("save_model comes before train(), so there is no trained model; train first.")
    target = Path(folder or "trainer_output")
    if target.resolve() == result.model.resolve():
        return
    shutil.copytree(result.model, target, dirs_exist_ok=True)
    print(f"{session.place()}: copied {result.model} to {target}")


def print_metrics(split: str, metrics: Mapping[str, Any]) -> None:
    """Print metrics, one a line."""
    print(f"***** {split} metrics *****")
    for name, value in sorted(metrics.items()):
        print(f"  {name} = {value}")


def save_metrics(folder: Path, split: str, metrics: Mapping[str, Any]) -> None:
    """Write metrics to `<split>_results.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{split}_results.json").write_text(json.dumps(dict(metrics), indent=4), encoding="utf-8")


def checkpoint_of(path: str | Path) -> Path:
    """The checkpoint of Strop that `resume_from_checkpoint` names. Raises ConfigError for another folder."""
    folder = Path(path)
    if not (folder / _MANIFEST).is_file() and not (folder / "checkpoints").is_dir():
        raise current_session().error(
            f"resume_from_checkpoint is {str(path)!r}, which is no checkpoint of Strop; leave it out, or write "
            "True: the same command resumes from the newest checkpoint of output_dir "
            "(output_dir/checkpoints/step-000020)."
        )
    return folder


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
                "save_steps or eval_steps."
            )
        if self._control.should_training_stop and self._run is not None:
            self._run.stop()
            self._run = None
