"""Strop from Python: what the command line calls, for notebooks and scripts.

Each function takes what `load` gives. Torch is imported when a run starts, not before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strop.config.load import Loaded, load_run, load_values

if TYPE_CHECKING:
    from strop.run.modes import Outcome

RewardFn = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a finished run leaves."""

    folder: Path
    """All that the run wrote."""
    model: Path | None
    """The trained model, as a Hugging Face folder; None where nothing is trained (mode explore)."""
    steps: int
    """Steps that are done, earlier starts included."""
    model_step: int
    """The step whose weights the model has: the last, or under `checkpoint.best` the best."""
    metrics: Mapping[str, float]
    """The last step's metrics; `docs/metrics.md` defines them."""


def load(run: str | Path | Mapping[str, Any], overrides: Sequence[str] = (), *, here: bool = False) -> Loaded:
    """Read a run file, or take its values as a dict. Overrides are Hydra's (`a.b=1`); `here` sets
    aside what asks for hardware that this machine lacks. Raises `ConfigError`."""
    if isinstance(run, Mapping):
        return load_values(run, overrides, here=here)
    return load_run(Path(run), overrides, here=here)


def train(run: Loaded, *, reward: RewardFn | None = None) -> RunResult:
    """Run to the end, or go on from where an earlier start of the same run was stopped: all stages, where
    there are stages, of which the last one's outcome is returned.

    `reward`, a plain function such as `f(completion, answer) -> float`, is added to those that the run
    file names. Raises a `StropError` where the run cannot go on.
    """
    from strop.run.modes import finished

    results = []
    for stage in run.each:
        done = finished(stage) if run.stages else None
        results.append(_train_one(stage, reward) if done is None else _result(done))
    return results[-1]


def _train_one(run: Loaded, reward: RewardFn | None) -> RunResult:
    from strop.report.build import write_bench, write_report
    from strop.run.modes import start

    if run.run.mode == "bench":
        outcome = start(run, reward)
        write_bench(outcome.folder)
        return _result(outcome)
    try:
        return _result(start(run, reward))
    finally:
        # A run that fails or is stopped has a report too, of what there is.
        if run.run.record.report and (run.run.folder_path / "metrics.jsonl").is_file():
            write_report(run.run.folder_path)


def _result(outcome: Outcome) -> RunResult:
    return RunResult(outcome.folder, outcome.model, outcome.steps, outcome.model_step, outcome.metrics)


def evaluate(
    run: Loaded, *, checkpoint: str | Path | None = None, reward: RewardFn | None = None
) -> dict[str, float]:
    """Measure the eval tasksets, with the model as it is or with a checkpoint's weights."""
    from strop.run.offline import evaluate as run_evaluate

    return run_evaluate(run, Path(checkpoint) if checkpoint else None, reward)


def generate(
    run: Loaded, prompts: str | Path, out: str | Path, *, checkpoint: str | Path | None = None
) -> int:
    """Answer every prompt of a Parquet or JSONL file with `rollout.sampling`, and write the file again as
    Parquet with a column `responses`; returns the number of prompts."""
    from strop.run.generate import generate as run_generate

    return run_generate(run, Path(prompts), Path(out), Path(checkpoint) if checkpoint else None)


def export(folder: str | Path, to: str | Path, *, step: int | None = None) -> Path:
    """Turn a run's checkpoint (the last good one, or that of `step`) into a Hugging Face folder."""
    from strop.run.offline import export as run_export

    return run_export(Path(folder), Path(to), step)
