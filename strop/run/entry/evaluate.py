"""Evaluation of the eval tasksets with the initial model or a checkpoint's weights, without training; and mode bench,
which evaluates several checkpoints.

bench.jsonl   one row per checkpoint
bench.csv     the same rows as a table
"""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from strop.config.load.loader import LoadedRun
from strop.config.preflight import require_reward
from strop.config.schema.run import Run
from strop.errors import CheckpointError, ConfigError
from strop.protocols import TrainingEngine
from strop.python_rewards import PythonRewards
from strop.rewards.scorable_tasks import require_scorable_tasks
from strop.run.check.refusals import require_eval_data
from strop.run.drivers.evaluation import evaluate as evaluate_tasksets
from strop.run.drivers.offline_policy import load_held_out, open_offline_policy
from strop.run.entry.trained_policy import policy_only
from strop.run.rollout.inference_engines import (
    open_colocated_policy,
    open_server_explorer,
    restore_engine,
    samples_from_server,
)
from strop.run.rollout.rollout_services import reward_sources
from strop.run.rollout.tasks import EvalTasksets, load_eval_tasks
from strop.run.state.run_state import RunState
from strop.run.tokenizer import load_run_tokenizer
from strop.runs.folder import RunFolder, reporting_write_errors
from strop.runs.formatting import format_duration, format_number
from strop.training.backend import open_training_engines
from strop.training.checkpoints import checkpoint
from strop.training.checkpoints import checkpoint as checkpoints
from strop.workers.files import atomic_write
from strop.workers.signals import StopSignal

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def evaluate(loaded: LoadedRun, checkpoint: Path | None, reward: PythonRewards | None) -> dict[str, float]:
    """Evaluate every eval taskset once: by the reward of sampled completions; under SFT and DPO also by the
    loss on demonstrations or pairs. Raises `ConfigError` where there is no eval taskset."""
    with open_evaluator(loaded.run, reward) as evaluate_checkpoint:
        return evaluate_checkpoint(checkpoint).metrics


def last_checkpoint(folder: RunFolder) -> Path:
    """The newest intact checkpoint of a run. Raises `CheckpointError` where there is none."""
    found, skipped = checkpoints.latest(folder.checkpoints)
    if found is None:
        raise CheckpointError(f"No good checkpoint in {folder.checkpoints}. {' '.join(skipped)}".rstrip())
    return found


@dataclass(frozen=True, slots=True)
class CheckpointMetrics:
    """Evaluation of one checkpoint's weights."""

    step: int
    """Step of the weights; 0 for the initial model."""
    metrics: dict[str, float]


EvaluateCheckpoint = Callable[[Path | None], CheckpointMetrics]
"""Evaluates a checkpoint's weights. With None it evaluates the initial model, which only the first call can."""


@contextmanager
def open_evaluator(
    run: Run, reward: PythonRewards | None, stop: StopSignal | None = None
) -> Iterator[EvaluateCheckpoint]:
    """Load the model and the eval tasksets once, to evaluate one checkpoint after the other.

    Raises `ConfigError` where there is nothing to evaluate.
    """
    if not run.data.eval:
        raise ConfigError(
            "There is nothing to evaluate: the run file names no eval taskset. Add one under `data.eval`, "
            "such as `eval: [{name: test, path: test.jsonl}]`."
        )
    stop = stop or StopSignal()
    open_sampling = _open_server if samples_from_server(run) else _open_sampling
    opener = _open_offline if run.algorithm.is_offline else open_sampling
    with opener(run, reward, stop) as evaluate_checkpoint:
        yield evaluate_checkpoint


@contextmanager
def _open_offline(run: Run, reward: PythonRewards | None, stop: StopSignal) -> Iterator[EvaluateCheckpoint]:
    """Evaluation of a run on given responses."""
    require_eval_data(run, reward)
    tokenizer = load_run_tokenizer(run)
    held_out = load_held_out(run, tokenizer, reward)
    with stop, open_offline_policy(run, tokenizer, reward, None, held_out, stop) as policy:

        def evaluate_checkpoint(checkpoint: Path | None) -> CheckpointMetrics:
            state = _restore(policy.engine, checkpoint)
            if policy.reference_point is not None:
                policy.reference_point.load_state(state.mean_log_ratio)
            return CheckpointMetrics(state.step, policy.evaluate(run, held_out, step=state.step).metrics)

        yield evaluate_checkpoint


@contextmanager
def _open_sampling(run: Run, reward: PythonRewards | None, stop: StopSignal) -> Iterator[EvaluateCheckpoint]:
    """Evaluation of a run with rollouts."""
    tokenizer, tasks = _load_tasks(run, reward)
    with (
        open_training_engines(policy_only(run)) as engines,
        open_colocated_policy(run, engines, tokenizer, reward_sources(run, reward), None, stop) as policy,
    ):

        def evaluate_checkpoint(checkpoint: Path | None) -> CheckpointMetrics:
            step = _restore(policy.engine, checkpoint).step
            policy.publisher.publish(step)
            return CheckpointMetrics(step, evaluate_tasksets(run, policy.explorer, tasks, step=step).metrics)

        yield evaluate_checkpoint


@contextmanager
def _open_server(run: Run, reward: PythonRewards | None, stop: StopSignal) -> Iterator[EvaluateCheckpoint]:
    """Evaluation of the model that a server has, without loading the run's."""
    tokenizer, tasks = _load_tasks(run, reward)
    with open_server_explorer(run, tokenizer, reward_sources(run, reward), stop) as explorer:

        def evaluate_checkpoint(checkpoint: Path | None) -> CheckpointMetrics:
            if checkpoint is not None:
                raise CheckpointError(
                    f"{checkpoint} cannot be evaluated on a server (rollout.engine.type openai), which has weights of "
                    "its own. Write `rollout.engine: native` to evaluate the checkpoint."
                )
            return CheckpointMetrics(0, evaluate_tasksets(run, explorer, tasks, step=0).metrics)

        yield evaluate_checkpoint


def _load_tasks(run: Run, reward: PythonRewards | None) -> tuple[PreTrainedTokenizerBase, EvalTasksets]:
    """Tokenizer and eval tasks of a run that is scored by its reward."""
    require_reward(run, reward)
    require_scorable_tasks(run, reward)
    tokenizer = load_run_tokenizer(run)
    return tokenizer, load_eval_tasks(run, tokenizer, run.data.eval)


def _restore(engine: TrainingEngine, checkpoint: Path | None) -> RunState:
    """Load a checkpoint's weights; returns the state of the run that they belong to."""
    if checkpoint is not None:
        checkpoints.verify(checkpoint)
    return restore_engine(engine, checkpoint)


INITIAL_MODEL = "model"
"""Label of the initial model (no checkpoint)."""


@dataclass(frozen=True, slots=True)
class BenchRow:
    """Evaluation of one checkpoint."""

    checkpoint: str
    """Name of the checkpoint's folder, or its path where another run wrote it."""
    step: int
    metrics: dict[str, float]


def bench(
    loaded: LoadedRun, reward: PythonRewards | None = None, stop: StopSignal | None = None
) -> list[BenchRow]:
    """Evaluate all checkpoints and write the tables.

    Raises `CheckpointError` for a missing or damaged checkpoint before any is evaluated.
    """
    run = loaded.run
    checkpoints = list(_checkpoints(run))
    folder = RunFolder.of(run)
    folder.create()
    rows = []
    with open_evaluator(run, reward, stop) as evaluate_checkpoint:
        for name, path in checkpoints:
            started = time.perf_counter()
            measured = evaluate_checkpoint(path)
            rows.append(BenchRow(name, measured.step, measured.metrics))
            print(_line(rows[-1], time.perf_counter() - started), flush=True)
    _write(folder.path, rows)
    return rows


def _checkpoints(run: Run) -> Iterator[tuple[str, Path | None]]:
    """Label and folder of each checkpoint; the folder is None for the initial model, or that of a server."""
    if run.bench.initial_model:
        yield INITIAL_MODEL, None
    if samples_from_server(run):
        return
    own = RunFolder.of(run)
    for path in [Path(one).expanduser() for one in run.bench.checkpoints] or [own.path]:
        found = checkpoint.folders(RunFolder(path).checkpoints)
        if not found and not (path / checkpoint.MANIFEST_FILE).is_file():
            raise CheckpointError(
                f"bench.checkpoints: {path} is neither a checkpoint (.../checkpoints/step-000020) nor a run "
                "folder with checkpoints. Without the key all checkpoints of this run are evaluated; train it "
                "first."
            )
        for folder in found or [path]:
            checkpoint.verify(folder)
            yield folder.name if folder.parent == own.checkpoints else str(folder), folder


def _line(row: BenchRow, seconds: float) -> str:
    scores = [
        f"{name.split('/')[1]} {format_number(value)}"
        for name, value in row.metrics.items()
        if name.endswith(("/reward", "/loss"))
    ]
    return f"{row.checkpoint}, step {row.step}:  {'  '.join(scores)}  {format_duration(seconds)}"


def _write(folder: Path, benched: Sequence[BenchRow]) -> None:
    rows = [{"checkpoint": one.checkpoint, "step": one.step, **one.metrics} for one in benched]
    names = list(dict.fromkeys(name for row in rows for name in row))
    table = io.StringIO(newline="")
    writer = csv.DictWriter(table, names)
    writer.writeheader()
    writer.writerows(rows)
    with reporting_write_errors(folder):
        atomic_write(folder / "bench.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        atomic_write(folder / "bench.csv", table.getvalue())
