"""Actions on a loaded run, whichever dialect it came from: train it, check it, explain it; tables in a
terminal, plain lines in a pipe."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from strop.cli.output import align_columns, echo, print_memory
from strop.config.explain import ExplainedValue, explain_values, summarize
from strop.config.load.loader import LoadedRun, start_directory
from strop.config.local_workers import WORKER_MODULES, local_workers
from strop.config.machine import OverriddenKey, described_machine
from strop.config.redact import safe_text
from strop.config.schema import Run
from strop.config.schema.preference import RewardModelingConfig
from strop.config.schema.trainer import LocalEngineConfig
from strop.errors import PlacementError
from strop.plan.fit import with_machine_defaults
from strop.plan.placement import describe_plan, machine_of, plan_rows, plan_run
from strop.printable import counted
from strop.workers.child_process import prepare_imports
from strop.workers.output import lasting_output

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

    from strop.config.load.loader import Job
    from strop.run.entry.score_file import SourceScores
    from strop.run.entry.start import RunResult


def _prepare_workers(run: Run) -> None:
    """Begin with the imports of local workers, which take as long as those of this process."""
    if (
        isinstance(run.trainer.engine, LocalEngineConfig)
        and run.trainer.engine.device != "cuda"
        and local_workers(run).count > 1
    ):
        prepare_imports(WORKER_MODULES)


def run_job(job: Job) -> RunResult:
    """Print the notes of a run, train it, and print where the results are; with what a component's job requests before
    and after it.

    In a process of torchrun other than the first one: join the run as a rank, and end with it.
    """
    from strop.run.distributed.torchrun import join_torchrun_run

    join_torchrun_run()
    is_component = bool(job.packages or job.outputs)
    if is_component:
        from strop.compat.azureml.job import install_packages

        install_packages(job.packages)
        # Imported after the installation, because these modules may import the installed packages.
        from strop.compat.azureml.job import prepare_outputs, write_outputs
        from strop.models.formats.mlflow import require_mlflow, write_mlflow

        prepare_outputs(job, require_mlflow)
        print_outputs(job)
    from strop import api

    with lasting_output():
        _prepare_workers(job.loaded.run)
        for stage in job.loaded.runs:
            print_notes(stage)
            print_memory(stage.run)
        result = api.train(job.loaded)
        _print_result(job.loaded, result)
    if is_component:
        for sentence in write_outputs(job, write_mlflow):
            echo(sentence)
    return result


def _print_result(loaded: LoadedRun, result: RunResult) -> None:
    from strop.runs.folder import RunFolder
    from strop.runs.reader import read_run
    from strop.runs.verdict import verdict

    if loaded.run.mode == "bench":
        echo(f"Table: {result.folder / 'bench.csv'}. Curves: {result.folder / 'bench.html'}.")
        return
    if result.model is None:
        echo(f"Explored {counted(result.steps, 'step')}. Run folder: {result.folder}.")
        return
    best = "" if result.model_step == result.steps else f" (best checkpoint, of step {result.model_step})"
    echo(
        f"Finished {counted(result.steps, 'step')}. Model: {result.model}{best}. Run folder: {result.folder}."
    )
    if summary := verdict(read_run(result.folder)):
        echo(f"Verdict: {summary}.")
    folder = RunFolder(result.folder)
    rows = [("show", "curves and responses")]
    is_reward_model = isinstance(loaded.run.algorithm, RewardModelingConfig)
    if not is_reward_model:
        rows.append(("chat", "talk with the model; --before: the initial one"))
    if loaded.run.data.eval:
        rows.append(("evaluate", "evaluate the last checkpoint"))
    if folder.report.exists():
        echo(f"Report: {folder.report}.")
    echo("Next:")
    path = shlex.quote(str(folder.path))
    echo(align_columns([(f"  strop {command} {path}", effect) for command, effect in rows], max_width=80))
    if is_reward_model:
        echo(f"In the run file of another run: `reward: {{models: [{{path: {result.model}}}]}}`.")


def change_recorded(job: Job, changes: Sequence[str]) -> None:
    """Replace the values of `--change` in the configuration that the run's folder has recorded."""
    if not changes:
        return
    from strop.run.state.identity import change_configuration

    keys = [override.partition("=")[0].lstrip("+~") for override in changes]
    for stage in job.loaded.runs:
        echo(change_configuration(stage.run, keys, stage.rewards or None))


def enter_start_directory(folder: Path) -> Path:
    """Continue in the directory that a run was started in, so that its relative paths and its modules mean what they
    meant; returns the run's folder as it is named from there."""
    directory = start_directory(folder)
    if directory is None:
        return folder
    folder = folder.resolve()
    os.chdir(directory)
    echo(f"Continuing in {directory}, where the run was started; relative paths start there.")
    return folder.relative_to(directory) if folder.is_relative_to(directory) else folder


def print_outputs(job: Job) -> None:
    """Print what the outputs of a component will hold."""
    for description in job.output_descriptions:
        echo(description)


def check_run(loaded: LoadedRun) -> None:
    """Print what of a run was checked and what was not, and that it can start as far as it was checked.

    Raises what `check_stages` raises, and PlacementError for what the machine lacks.
    """
    from strop.config.preflight import hub_models
    from strop.run.check.stage_check import check_stages

    for stage in loaded.runs:
        print_notes(stage)
    for check in check_stages(loaded):
        run, found = check.stage.run, check.findings
        for line in (*hub_models(run), *check.data, *found.advice):
            echo(line)
        print_plan(run)
        fit = print_memory(check.run)
        is_known = fit is not None and fit.needed is not None
        memory = ["the memory at the peak, as an estimate"] if is_known else []
        _print_list("Checked", found.checked + memory)
        _print_list("Not checked", found.unchecked + ([] if is_known else ["the memory at the peak"]))
        is_too_large = fit is not None and not fit.fits
        verdict = ", and may run out of memory" if is_too_large else ""
        echo(f"The run can start as far as it was checked{verdict}. Run folder: {run.folder_path}.")


def _print_list(title: str, lines: Sequence[str]) -> None:
    if lines:
        echo(f"{title}:")
    for line in lines:
        echo(f"  {line}")


def print_plan(run: Run) -> None:
    """Print which process gets which GPUs of the run's machine; nothing where it has none and none is described.

    Raises PlacementError for what the machine lacks.
    """
    if run.mode == "bench":
        return
    plan = plan_run(with_machine_defaults(run))
    if not (machine_of(run).gpus or described_machine()):
        return
    echo(describe_plan(plan))
    echo(f"{align_columns(plan_rows(plan))}\n")


class NotedConfig(Protocol):
    """A loaded configuration with notes for its user."""

    @property
    def overridden(self) -> tuple[OverriddenKey, ...]: ...
    @property
    def notes(self) -> tuple[str, ...]: ...


def print_notes(loaded: NotedConfig) -> None:
    """Print the keys that `--here` overrides, and the notes about values without effect."""
    for key in loaded.overridden:
        echo(f"overridden: {key}")
    for note in loaded.notes:
        echo(f"note: {note}")


_FOREIGN = "foreign key"
_STYLES = {"field": "cyan", "value": "bold", _FOREIGN: "magenta", "source": "green"}
_WIDE = 140
"""Columns of a terminal from which a table of values is readable."""


def show_explanation(loaded: LoadedRun) -> None:
    """Print a summary, the notes, and every value of a run; of each stage if there are stages."""
    for number, stage in enumerate(loaded.runs, 1):
        if loaded.stages:
            echo(f"Stage {number} of {len(loaded.stages)}, {stage.run.name}:")
        _show(stage)


def _show(loaded: LoadedRun) -> None:
    values = explain_values(loaded)
    if sys.stdout.isatty():
        _print_table(summarize(loaded), loaded, values)
        _print_plan_or_obstacle(loaded)
        return
    echo(f"{summarize(loaded)}\n")
    _print_plan_or_obstacle(loaded)
    print_notes(loaded)
    if loaded.overridden or loaded.notes:
        echo()
    columns = _columns(values)
    echo(align_columns([columns, *(_cells(value, columns) for value in values)]))


def _print_plan_or_obstacle(loaded: LoadedRun) -> None:
    """Print the placement plan, or why there is none: an explanation does not need the machine of the run."""
    try:
        print_plan(loaded.run)
    except PlacementError as error:
        echo(f"No placement: {error}\n")


def _columns(values: list[ExplainedValue]) -> tuple[str, ...]:
    """Return the column headings; a configuration of another tool has a column for its keys."""
    foreign = (_FOREIGN,) if any(value.foreign_key for value in values) else ()
    return ("field", "value", "unit", *foreign, "source", "effect")


def _cells(value: ExplainedValue, columns: tuple[str, ...]) -> tuple[str, ...]:
    foreign = (value.foreign_key,) if _FOREIGN in columns else ()
    return (value.field, value.value, value.unit, *foreign, value.location, value.effect)


def explain_or_check(loaded: LoadedRun, *, explain: bool, check: bool) -> bool:
    """Print what a run would do, and whether it can start, as requested; returns whether either was."""
    if explain:
        show_explanation(loaded)
    if check:
        check_run(loaded)
    return explain or check


def show_scores(scores: Mapping[str, SourceScores]) -> None:
    """Print the metrics of each data source's responses."""
    for source, found in scores.items():
        echo(f"{source}: {found.prompts} prompts, {found.responses} responses")
        for name, value in found.metrics.items():
            echo(f"  {name:10} {value:.6g}")


def _print_table(summary: str, loaded: LoadedRun, values: list[ExplainedValue]) -> None:
    """Print the values that are set, then the defaults; in a narrow terminal the effect is below each value."""
    from rich.console import Console
    from rich.text import Text

    console = Console()
    console.print(Text(safe_text(f"{summary}\n")))
    print_notes(loaded)
    columns = _columns(values)
    is_set = [value.source.kind != "default" for value in values]
    for title, wanted in (("Values that are set", True), ("Defaults", False)):
        chosen = [value for value, found in zip(values, is_set, strict=True) if found == wanted]
        if chosen:
            console.print(Text(f"\n{title}:", style="bold"))
            console.print(_table(chosen, columns) if console.width >= _WIDE else _value_list(chosen, columns))


def _table(values: list[ExplainedValue], columns: tuple[str, ...]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name, style=_STYLES.get(name, ""), overflow="fold")
    for value in values:
        cells = (Text(safe_text(cell)) for cell in _cells(value, columns))
        table.add_row(*cells, style="dim" if value.source.kind == "default" else "")
    return table


def _value_list(values: list[ExplainedValue], columns: tuple[str, ...]) -> Group:
    """Each value with its unit and source on a line, and its effect on the lines below."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    lines: list[Padding | Text] = []
    for value in values:
        cells = dict(zip(columns, map(safe_text, _cells(value, columns)), strict=True))
        effect = cells.pop("effect")
        line = Text()
        for name, cell in cells.items():
            line.append(f"{cell}  " if cell else "", style=_STYLES.get(name, ""))
        lines += [line, Padding(Text(effect, style="dim"), (0, 0, 0, 4))]
    return Group(*lines)
