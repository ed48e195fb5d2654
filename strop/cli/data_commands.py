"""`strop data`: run a run's task pipeline, show its result, and show what it changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from strop.cli.arguments import HereOption, OverridesArgument, RunFileArgument
from strop.cli.command_group import CommandGroup
from strop.cli.output import align_columns, echo
from strop.errors import ConfigError

if TYPE_CHECKING:
    from strop.config.schema import Run

app = typer.Typer(
    cls=CommandGroup,
    help="Run a run's task pipeline, show its result, and show what it changed.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
RowsOption = Annotated[int, typer.Option("--rows", help="Number of rows to print.", min=0)]


@app.command()
def run(
    run: RunFileArgument,
    overrides: OverridesArgument = None,
    here: HereOption = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Apply the operators to the first rows only, show each step, and write no result.",
        ),
    ] = False,
    rows: RowsOption = 10,
) -> None:
    """Run `data.pipeline` of a run file, or find its result in the cache."""
    from strop.run.entry.prepare_data import prepare_data, preview_data

    for found in _runs(run, overrides, here):
        if dry_run:
            for line in preview_data(found, rows):
                echo(line)
        else:
            result = prepare_data(found)
            if result is None:
                raise ConfigError(
                    "data.queue and data.stream: the operators of data.pipeline see rows as the run reads them. "
                    "--dry-run shows their effect on the first rows."
                )
            echo(str(result))


@app.command()
def show(run: RunFileArgument, overrides: OverridesArgument = None, here: HereOption = False) -> None:
    """Print the rows in and out of each operator, why rows were removed, and histograms of their scores."""
    from strop.run.prepared_data import prepared_result
    from strop.runs.task_pipeline import describe_manifest

    for found in _runs(run, overrides, here):
        result = prepared_result(found)
        echo(f"{result}\n")
        table, *details = describe_manifest(result.manifest)
        echo(align_columns(table, max_width=60))
        for title, rows in details:
            echo(f"\n{title}")
            echo(align_columns(rows, max_width=60))


@app.command()
def diff(
    run: RunFileArgument, overrides: OverridesArgument = None, here: HereOption = False, rows: RowsOption = 10
) -> None:
    """Print rows that the pipeline removed, with operator and reason, and rows that it changed or added."""
    from strop.pipelines.tasks.difference import describe_difference
    from strop.run.prepared_data import prepared_result

    for found in _runs(run, overrides, here):
        for line in describe_difference(found.data.train, prepared_result(found), rows):
            echo(line)


def _runs(run: object, overrides: list[str] | None, here: bool) -> list[Run]:
    """The runs of a file that have a pipeline. Raises ConfigError if there is none."""
    from strop.reading import read_any

    found = [stage.run for stage in read_any(run, overrides or (), here=here).loaded.runs]  # type: ignore[arg-type]
    with_pipeline = [each for each in found if each.data.pipeline is not None]
    if not with_pipeline:
        raise ConfigError(f"{run} has no data.pipeline; write its operators there.")
    return with_pipeline
