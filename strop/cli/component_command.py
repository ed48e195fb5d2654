"""`strop component`: run the job of an AzureML command component."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from strop.cli.arguments import HereOption

if TYPE_CHECKING:
    pass


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
    from strop.cli.actions import print_outputs, run_job
    from strop.cli.show import explain_or_check
    from strop.compat.azureml.reader import read_component
    from strop.compat.registry import key_owner_hint

    job = read_component(name, context.args, here=here, key_owner=key_owner_hint)
    if explain or check:
        print_outputs(job)
    if not explain_or_check(job.loaded, explain=explain, check=check):
        run_job(job)


def add_to(app: typer.Typer) -> None:
    """Add the command to an app."""
    app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(component)
