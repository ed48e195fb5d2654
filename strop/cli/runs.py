"""The commands on run files and run folders."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from strop.cli.arguments import Checkpoint, Here, Overrides, RunFile, RunFolder


def train(run: RunFile, overrides: Overrides = None, here: Here = False) -> None:
    """Train, or go on with a run that was stopped. The file may also be verl's, Trinity's or AzureML's."""
    from strop.cli.component import run_job
    from strop.config.dialects.recognise import read_file

    run_job(read_file(run, overrides or (), here=here))


def check(run: RunFile, overrides: Overrides = None, here: Here = False) -> None:
    """Say whether a run file can be started, without loading anything heavy."""
    from strop.cli.actions import check_files
    from strop.config.dialects.recognise import read_file

    check_files(read_file(run, overrides or (), here=here).loaded)


def explain(run: RunFile, overrides: Overrides = None, here: Here = False) -> None:
    """Say what a run will do, and of each value its unit, where it was said, and its effect."""
    from strop.cli.actions import say_outputs
    from strop.cli.show import show_explanation
    from strop.config.dialects.recognise import read_file

    job = read_file(run, overrides or (), here=here)
    say_outputs(job)
    show_explanation(job.loaded)


def evaluate(
    run: RunFile, overrides: Overrides = None, checkpoint: Checkpoint = None, here: Here = False
) -> None:
    """Measure the eval tasksets, with the model as it is or with a checkpoint's weights."""
    from strop import api
    from strop.config.dialects.recognise import read_file

    metrics = api.evaluate(read_file(run, overrides or (), here=here).loaded, checkpoint=checkpoint)
    for name, value in metrics.items():
        typer.echo(f"{name} = {value:.6g}")


def generate(
    run: RunFile,
    prompts: Annotated[Path, typer.Option(help="Parquet or JSONL with a prompt in each row.")],
    out: Annotated[Path, typer.Option(help="Parquet to write: the same rows with a column `responses`.")],
    overrides: Overrides = None,
    checkpoint: Checkpoint = None,
    here: Here = False,
) -> None:
    """Answer every prompt of a file."""
    from strop import api
    from strop.config.dialects.recognise import read_file

    count = api.generate(
        read_file(run, overrides or (), here=here).loaded, prompts, out, checkpoint=checkpoint
    )
    typer.echo(f"Answered {count} prompts: {out}")


def export(
    folder: RunFolder,
    to: Annotated[Path, typer.Option(help="The folder to write.")],
    step: Annotated[
        int | None, typer.Option(help="Of this step's checkpoint; else the last good one.")
    ] = None,
) -> None:
    """Turn a run's checkpoint into a Hugging Face folder: a LoRA as adapter and merged."""
    from strop import api

    typer.echo(f"Wrote {api.export(folder, to, step=step)}")


def report(folder: RunFolder) -> None:
    """Write a run folder's report.html anew."""
    from strop.report.build import write_report

    typer.echo(f"Wrote {write_report(folder)}")


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    for command in (train, check, explain, evaluate, generate, export, report):
        app.command()(command)
