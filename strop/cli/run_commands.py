"""Commands on run files and run folders: train, check, explain, evaluate, generate, export, report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from strop.cli.arguments import (
    CheckpointOption,
    HereOption,
    MachineOption,
    OverridesArgument,
    RunFileArgument,
    RunFolderArgument,
)
from strop.cli.output import echo
from strop.errors import ConfigError

if TYPE_CHECKING:
    from strop.config.load.loader import LoadedRun


def train(
    run: RunFileArgument,
    overrides: OverridesArgument = None,
    here: HereOption = False,
    change: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY[=VALUE]",
            help="Continue a stopped run with another value, such as trainer.optimizer.lr=1e-6, or with changed data "
            "or code, such as data.train; may be repeated.",
        ),
    ] = None,
) -> None:
    """Train, or resume a run that was stopped. The file may also be one of verl, Trinity-RFT, TRL or AzureML, or the
    folder of a run."""
    from strop.cli.actions import change_recorded, enter_start_directory, run_job
    from strop.config.load.loader import is_run_folder
    from strop.config.paths import SCRIPT_SUFFIXES
    from strop.reading import read_any

    if run.suffix in SCRIPT_SUFFIXES:
        from strop.cli.script import train_script

        train_script(run, overrides or (), here=here, changes=change or ())
        return
    if is_run_folder(run):
        run = enter_start_directory(run)
    values = [each for each in change or () if "=" in each]
    job = read_any(run, [*(overrides or ()), *values], here=here)
    change_recorded(job, change or ())
    run_job(job)


def check(
    run: RunFileArgument,
    overrides: OverridesArgument = None,
    here: HereOption = False,
    machine: MachineOption = None,
) -> None:
    """Check whether a run can start, without loading its model."""
    from strop.cli.actions import check_run
    from strop.config.machine import on_machine, parse_machine
    from strop.reading import read_any

    with on_machine(parse_machine(machine) if machine else None):
        check_run(read_any(run, overrides or (), here=here).loaded)


def explain(
    run: RunFileArgument,
    overrides: OverridesArgument = None,
    here: HereOption = False,
    machine: MachineOption = None,
) -> None:
    """Print what a run will do, and every value with its unit, source and effect."""
    from strop.cli.actions import print_outputs
    from strop.cli.show import show_explanation
    from strop.config.machine import on_machine, parse_machine
    from strop.reading import read_any

    with on_machine(parse_machine(machine) if machine else None):
        job = read_any(run, overrides or (), here=here)
        print_outputs(job)
        show_explanation(job.loaded)


def evaluate(
    run: RunFileArgument,
    overrides: OverridesArgument = None,
    checkpoint: CheckpointOption = None,
    here: HereOption = False,
    harness: Annotated[
        str | None,
        typer.Option(
            "--with",
            metavar="lm-eval:TASKS",
            help="Serve the trained model of a run folder, or a model folder, to lm-eval, for these tasks; "
            "arguments after `--` go to lm_eval.",
        ),
    ] = None,
) -> None:
    """Evaluate the initial model of a run file, the last checkpoint of a run folder, or a named checkpoint."""
    if harness is not None:
        if checkpoint is not None or here:
            raise ConfigError(
                "--with evaluates the trained model of a run: leave out --here and --checkpoint, or write the "
                "checkpoint's model to a folder with `strop export RUN --step N --to FOLDER` and evaluate that folder"
            )
        from strop.cli.harness import evaluate_with

        evaluate_with(harness, run, overrides or ())
        return
    from strop import api

    loaded, checkpoint = _policy(run, overrides or (), checkpoint, here=here)
    metrics = api.evaluate(loaded, checkpoint=checkpoint)
    if checkpoint is not None:
        echo(f"checkpoint = {checkpoint}")
    for name, value in metrics.items():
        echo(f"{name} = {value:.6g}")


def generate(
    run: RunFileArgument,
    prompts: Annotated[Path, typer.Option(help="Parquet or JSONL file with one prompt per row.")],
    out: Annotated[
        Path, typer.Option(help="Parquet file to write: the same rows with a column `responses`.")
    ],
    overrides: OverridesArgument = None,
    checkpoint: CheckpointOption = None,
    here: HereOption = False,
) -> None:
    """Sample responses to every prompt of a file, with the initial model of a run file or the last checkpoint of a run
    folder."""
    from strop import api

    loaded, checkpoint = _policy(run, overrides or (), checkpoint, here=here)
    count = api.generate(loaded, prompts, out, checkpoint=checkpoint)
    echo(f"Wrote responses to {count} prompts: {out}")


def _policy(
    run: Path, overrides: Sequence[str], checkpoint: Path | None, *, here: bool
) -> tuple[LoadedRun, Path | None]:
    """The run of a file with its initial model, or that of a folder with its last checkpoint, unless one is named."""
    from strop.config.load.loader import is_run_folder
    from strop.reading import key_owner, read_any

    if not is_run_folder(run):
        return read_any(run, overrides, here=here).loaded, checkpoint
    from strop.run.entry.evaluate import last_checkpoint
    from strop.run.entry.trained_policy import load_policy_run
    from strop.runs.folder import RunFolder

    folder = RunFolder(run)
    loaded = load_policy_run(folder, overrides, here=here, key_owner=key_owner)
    return loaded, checkpoint or last_checkpoint(folder)


def export(
    folder: RunFolderArgument,
    to: Annotated[Path, typer.Option(help="Folder to write.")],
    step: Annotated[
        int | None, typer.Option(help="Step of the checkpoint; by default the last valid one.")
    ] = None,
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"] | None,
        typer.Option(help="Data type of the weights; by default the run's export.dtype."),
    ] = None,
    push_to_hub: Annotated[
        str | None, typer.Option(metavar="ORG/NAME", help="Repository on the Hub to upload the folder to.")
    ] = None,
    private: Annotated[
        bool, typer.Option("--private", help="Create the repository as a private one.")
    ] = False,
) -> None:
    """Convert a run's checkpoint, or a GGUF file, to a Hugging Face folder; a LoRA both as an adapter and merged."""
    from strop import api

    echo(f"Wrote {api.export(folder, to, step=step, dtype=dtype)}")
    if push_to_hub is not None:
        from strop.run.entry.export import push_to_hub as push

        echo(f"Uploaded to {push(to, push_to_hub, private=private)}")


def report(folder: RunFolderArgument) -> None:
    """Write report.html into a run folder."""
    from strop.report.build import write_report

    echo(f"Wrote {write_report(folder)}")


def add_to(app: typer.Typer) -> None:
    """Add the commands to an app."""
    for command in (train, check, explain, evaluate, generate, export, report):
        app.command()(command)
