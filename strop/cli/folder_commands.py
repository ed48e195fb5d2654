"""Commands that look at run folders: list, show, compare, watch."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strop.cli.arguments import RunFolderArgument
from strop.cli.output import align_columns, echo
from strop.errors import RunFolderError
from strop.printable import counted

if TYPE_CHECKING:
    from strop.runs.metrics_file import MetricsRow
    from strop.runs.reader import RunData
    from strop.runs.samples import TaskSample

_CURVES = (
    "reward/mean",
    "sft_loss",
    "preference_loss",
    "response_tokens/mean",
    "rollouts/truncated_fraction",
    "groups/zero_variance_fraction",
    "entropy",
    "approx_kl",
    "grad_norm",
    "time/step_seconds",
)
"""Metrics that `show` draws, where a run has them; eval rewards come first."""
_CURVE_WIDTH = 32
_MAX_SAMPLE_LINES = 12


def list_runs(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Folder that holds runs.", show_default=True)
    ] = Path("runs"),
) -> None:
    """List the runs below a folder: status, step, reward, held-out reward, age."""
    from strop.runs.formatting import format_duration, format_number
    from strop.runs.overview import find_runs, run_overview

    if not folder.is_dir():
        raise RunFolderError(
            f"There is no folder {folder}. Write the folder that `output` names in the run files."
        )
    overviews = [run_overview(path) for path in find_runs(folder)]
    if not overviews:
        echo(f"No runs in {folder}.")
        return
    rows = [("run", "status", "step", "reward", "held-out", "last change")]
    for one in overviews:
        held_out = ", ".join(f"{name} {format_number(value)}" for name, value in one.held_out.items())
        age = (datetime.now(UTC) - one.changed).total_seconds()
        rows.append(
            (
                str(one.path.relative_to(folder)) if one.path != folder else str(folder),
                one.status,
                f"{one.step}/{one.steps}" if one.steps else "-",
                "-" if one.reward is None else format_number(one.reward),
                held_out or "-",
                f"{format_duration(max(age, 0))} ago",
            )
        )
    echo(align_columns(rows, max_width=60))


def show(
    folder: RunFolderArgument,
    samples: Annotated[int, typer.Option(help="Number of responses to print.", min=0)] = 2,
) -> None:
    """Print the summary of a run, its curves, and responses of the last evaluation or step."""
    from strop.runs.reader import read_run
    from strop.runs.samples import choose_samples

    data = read_run(folder)
    echo("\n".join(_summary(data)))
    echo(align_columns(list(_curves(data)), max_width=_CURVE_WIDTH))
    chosen = [(found.title, sample) for found in choose_samples(data) for sample in found.samples]
    for title, sample in chosen[:samples]:
        echo(f"\n{title}\n" + "\n".join(_sample_lines(sample)))
    if data.folder.report.exists():
        echo(f"\nReport: {data.folder.report}")


def compare(
    folders: Annotated[
        list[Path], typer.Argument(metavar="RUN_FOLDER...", help="Folders of two or more runs.")
    ],
    html: Annotated[
        Path | None, typer.Option(help="HTML page to write: overlaid curves, and responses side by side.")
    ] = None,
) -> None:
    """Compare runs: the settings that differ, and the last value of each metric that differs."""
    from strop.runs.comparison import compare_metrics, differing_settings, run_labels
    from strop.runs.formatting import format_number
    from strop.runs.reader import read_run

    if len(folders) < 2:
        raise RunFolderError("A comparison needs two or more run folders.")
    runs = [read_run(folder) for folder in folders]
    labels = run_labels(runs)
    settings = differing_settings(runs)
    if settings:
        echo(align_columns([("setting", *labels), *((key, *values) for key, values in settings)]) + "\n")
    metrics = compare_metrics(runs)
    rows = [("metric", *labels)]
    for row in metrics:
        if len(set(row.last)) > 1:
            rows.append((row.name, *("-" if value is None else format_number(value) for value in row.last)))
    echo(align_columns(rows))
    if equal := len(metrics) - len(rows) + 1:
        echo(f"{counted(equal, 'metric')} with equal last values left out.")
    if html is not None:
        from strop.report.build import write_comparison

        write_comparison(runs, html)
        echo(f"\nWrote {html}")


def _summary(data: RunData) -> Iterator[str]:
    """Lines about what the run trains, and how far it is."""
    from strop.runs.formatting import format_time
    from strop.runs.overview import run_state, run_status
    from strop.runs.verdict import learning_faults, verdict

    status, run = run_status(data), data.configuration()
    yield f"{data.folder.path}: {run_state(data)}, step {status.step} of {status.steps}"
    if status.message:
        yield f"  {status.message}"
    model = run.get("model", {}).get("path")
    algorithm = run.get("algorithm", {}).get("type", "grpo")
    train = run.get("data", {}).get("train") or {}
    if model:
        yield f"  {algorithm} of {model} on {train.get('path', 'its tasks') if isinstance(train, dict) else train}"
    if data.sessions:
        first, last = data.sessions[0], data.sessions[-1]
        resumed = f", resumed {counted(len(data.sessions) - 1, 'time')}" if len(data.sessions) > 1 else ""
        ended = format_time(last["ended"]) if last["ended"] else "-"
        yield f"  started {format_time(first['started'])}, ended {ended}{resumed}"
    if summary := verdict(data):
        yield f"  {summary}"
    yield from (f"  warning: {fault}" for fault in learning_faults(data.rows))
    yield ""


def _curves(data: RunData) -> Iterator[tuple[str, ...]]:
    """Rows of a table: a metric's name, its curve, its first and its last value."""
    from strop.runs.formatting import format_number, sparkline

    names = data.names()
    held_out = [name for name in names if name.startswith("eval/") and name.endswith("/reward")]
    yield ("metric", "curve", "first -> last")
    for name in (*held_out, *(name for name in _CURVES if name in names)):
        values = data.series(name)[1]
        if values:
            change = f"{format_number(values[0])} -> {format_number(values[-1])}"
            yield (name, sparkline(_thinned(values), _CURVE_WIDTH), change)


def _thinned(values: list[float]) -> list[float]:
    """At most as many values as a curve is wide: means of equal stretches."""
    if len(values) <= _CURVE_WIDTH:
        return values
    bounds = [round(number * len(values) / _CURVE_WIDTH) for number in range(_CURVE_WIDTH + 1)]
    return [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(bounds)]


def _sample_lines(sample: TaskSample) -> Iterator[str]:
    yield from _indented("prompt", sample.prompt)
    if sample.expected is not None:
        yield from _indented("expected", sample.expected)
    for answer in sample.answers:
        reward = "failed" if answer.reward is None else f"reward {answer.reward:g}"
        yield from _indented(f"{answer.label}, {reward}, {answer.tokens} tokens", answer.text)


def _indented(label: str, text: str) -> Iterator[str]:
    """The label, and below it the text's first lines."""
    lines = text.splitlines()
    yield f"  {label}:"
    yield from (f"    {line}" for line in lines[:_MAX_SAMPLE_LINES])
    if len(lines) > _MAX_SAMPLE_LINES:
        yield f"    ... {len(lines) - _MAX_SAMPLE_LINES} more lines"


def watch(
    folder: RunFolderArgument,
    every: Annotated[float, typer.Option(help="Seconds between two looks.", min=0.1)] = 2.0,
    wait: Annotated[
        float, typer.Option(help="Seconds to wait for a run that has no folder yet.", min=0)
    ] = 300.0,
) -> None:
    """Print the last step of a run and each further one as it is recorded, until the run ends."""
    from strop.run.recording.console import make_display
    from strop.runs.overview import run_state, run_status
    from strop.runs.reader import read_run
    from strop.runs.verdict import learning_faults, verdict

    _wait_for_start(folder, every, wait)
    data = read_run(folder)
    display = make_display(sys.stdout, run_status(data).steps)
    # The steps before the last one took place before the display's clock started.
    display.open(str(folder), (), done=run_status(data).step)
    shown = {int(row["step"] or 0): _values(row) for row in data.rows[:-1]}
    for values in shown.values():
        display.earlier_step(values)
    try:
        while True:
            for row in data.rows:
                step, values = int(row["step"] or 0), _values(row)
                known = shown.get(step, {})
                new = {name: value for name, value in values.items() if known.get(name) != value}
                if new:  # an evaluation is added to a row later
                    display.step(step, new)
                    shown[step] = values
            state = run_state(data)
            if state != "running":
                break
            time.sleep(every)
            data = read_run(folder)
    finally:
        display.close()
    message = run_status(data).message
    echo(f"{state}{f': {message}' if message else ''}. {verdict(data)}".rstrip())
    for fault in learning_faults(data.rows):
        echo(f"warning: {fault}")


def _wait_for_start(folder: Path, every: float, seconds: float) -> None:
    """Wait at most `seconds` for a run in a folder that does not exist: a run makes it when its model is loaded."""
    from strop.runs.folder import RunFolder
    from strop.runs.sessions import read_sessions

    if folder.exists() or not seconds:
        return
    echo(f"There is no folder {folder} yet; waiting {seconds:g} s for a run to start in it.")
    end = time.monotonic() + seconds
    while not (read_sessions(folder) or RunFolder(folder).metrics.exists()) and time.monotonic() < end:
        time.sleep(min(every, seconds))


def _values(row: MetricsRow) -> dict[str, float]:
    return {name: value for name, value in row.items() if value is not None}
