"""What can be done with a run's configuration and weights without training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strop.config.check import require_reward
from strop.config.load import Loaded, load_run
from strop.config.schema import Run
from strop.config.schema.algorithm import Dpo, Sft
from strop.errors import CheckpointError, ConfigError
from strop.protocols import TrainingEngine
from strop.run.evaluate import evaluate as evaluate_tasksets
from strop.run.folder import RunFolder
from strop.run.policy import open_policy, restore
from strop.run.pupil import load_held_out, open_pupil, require_measures
from strop.run.tasks import load_eval_tasks
from strop.run.tokenizer import tokenizer_of
from strop.training import checkpoint as checkpoints
from strop.training.table import open_engines


def evaluate(loaded: Loaded, checkpoint: Path | None, reward: Callable[..., Any] | None) -> dict[str, float]:
    """Measure every eval taskset once: by the reward of sampled answers, and under sft and dpo by the loss
    on given ones. Raises `ConfigError` where there is none."""
    with open_measure(loaded.run, reward) as measure:
        return measure(checkpoint).metrics


@dataclass(frozen=True, slots=True)
class Measured:
    """What the eval tasksets say of some weights."""

    step: int
    metrics: dict[str, float]


Measure = Callable[[Path | None], Measured]
"""Of a checkpoint's weights, or first of all of the model as it is."""


@contextmanager
def open_measure(run: Run, reward: Callable[..., Any] | None) -> Iterator[Measure]:
    """What measures one checkpoint after the other. Raises `ConfigError` where nothing can be measured."""
    if not run.data.eval:
        raise ConfigError(
            "There is nothing to evaluate: the run file names no eval taskset. Add one under `data.eval`, "
            "such as `eval: [{name: test, path: test.jsonl}]`."
        )
    offline = isinstance(run.algorithm, Sft | Dpo)
    (require_measures if offline else require_reward)(run, reward)
    tokenizer = tokenizer_of(run)
    if offline:
        held_out = load_held_out(run, tokenizer, reward)
        with open_pupil(run, tokenizer, reward, None, held_out) as pupil:

            def measure(checkpoint: Path | None) -> Measured:
                step = _restore(pupil.engine, checkpoint)
                return Measured(step, pupil.measure(run, held_out, step=step).metrics)

            yield measure
        return
    tasks = load_eval_tasks(run, tokenizer, run.data.eval)
    with open_engines(run) as engines, open_policy(run, engines, tokenizer, reward, None) as policy:

        def sample(checkpoint: Path | None) -> Measured:
            step = _restore(policy.engine, checkpoint)
            policy.synchronizer.publish(step)
            return Measured(step, evaluate_tasksets(run, policy.explorer, tasks, step=step).metrics)

        yield sample


def _restore(engine: TrainingEngine, checkpoint: Path | None) -> int:
    """The step that the weights are of."""
    if checkpoint is not None:
        checkpoints.verify(checkpoint)
    return restore(engine, checkpoint).step


def export(folder: Path, to: Path, step: int | None) -> Path:
    """A checkpoint of the run in `folder` as a Hugging Face folder; with LoRA, the adapter beside it."""
    source = RunFolder(folder)
    if not source.run_file.is_file():
        raise CheckpointError(f"{folder} is no run folder: there is no {source.run_file.name} in it.")
    found, passed_over = checkpoints.latest(source.checkpoints)
    if step is not None:
        found = checkpoints.folder_of(source.checkpoints, step)
        if not found.is_dir():
            raise CheckpointError(f"There is no checkpoint of step {step} in {source.checkpoints}.")
        checkpoints.verify(found)
    if found is None:
        raise CheckpointError(f"No good checkpoint in {source.checkpoints}. {' '.join(passed_over)}")
    run = load_run(source.run_file).run
    with open_engines(run) as engines:
        engine = engines.policy()
        engine.load(found)
        engine.export(tokenizer_of(run), to)
    return to
