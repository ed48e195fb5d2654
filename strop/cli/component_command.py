"""`strop component`: run the job of an AzureML command component."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from strop.cli.arguments import HereOption
from strop.cli.output import echo

if TYPE_CHECKING:
    from strop.dialects.job import Job
    from strop.run.entry.result import RunResult


def component(
    context: typer.Context,
    name: Annotated[
        str,
        typer.Argument(
            help="rft_trainer, verl_trainer or grpo, or the component's name in AzureML.", show_default=False
        ),
    ],
    here: HereOption = False,
    explain: Annotated[bool, typer.Option("--explain", help="Print what the job would do.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Check whether the job can start.")] = False,
) -> None:
    """Run an AzureML component with `--input value ...`, all values as text, and `--output folder`.

    `strop keys NAME` lists the inputs.
    """
    from strop.cli.actions import print_outputs
    from strop.cli.show import explain_or_check
    from strop.dialects.azureml.reader import read_component
    from strop.dialects.key_owner import key_owner_hint

    job = read_component(name, context.args, here=here, key_owner=key_owner_hint)
    if explain or check:
        print_outputs(job)
    if not explain_or_check(job.loaded, explain=explain, check=check):
        run_job(job)


def run_job(job: Job) -> RunResult:
    """Install the packages that the job requests, train, and fill its outputs.

    In a process of torchrun other than the first one: join the run as a rank, and end with it.
    """
    from strop.cli.actions import print_outputs, run_and_print
    from strop.dialects.azureml.requirements import install_packages
    from strop.run.distributed.torchrun import join_torchrun_run

    join_torchrun_run()
    install_packages(job.packages)
    # Imported after the installation, because these modules may import the installed packages.
    from strop.dialects.azureml.outputs import prepare_outputs, write_outputs
    from strop.models.formats.mlflow import require_mlflow, write_mlflow

    prepare_outputs(job, require_mlflow)
    print_outputs(job)
    result = run_and_print(job.loaded)
    for sentence in write_outputs(job, write_mlflow):
        echo(sentence)
    return result


def add_to(app: typer.Typer) -> None:
    """Add the command to an app."""
    app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(component)
