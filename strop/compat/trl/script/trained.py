"""Results of training that a script reads: the state, the metrics by TRL's names, and the trained model."""

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
    from strop.run.entry.result import RunResult

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
            "True: the "
            "same command resumes from the newest checkpoint of output_dir (output_dir/checkpoints/step-000020)."
        )
    return folder
