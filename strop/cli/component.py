"""`strop component`: what AzureML's jobs call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from strop.cli.arguments import Here

if TYPE_CHECKING:
    from strop.config.dialects.component import Job


def component(
    context: typer.Context,
    name: Annotated[
        str,
        typer.Argument(help="rft_trainer, verl_trainer or grpo, or AzureML's own name.", show_default=False),
    ],
    here: Here = False,
    explain: Annotated[bool, typer.Option("--explain", help="Say what the job would do.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Say whether the job can be started.")] = False,
) -> None:
    """Run what an AzureML component runs: `--input value ...`, all as text, and `--output folder`.

    `strop keys NAME` lists the inputs.
    """
    from strop.cli.actions import say_outputs
    from strop.cli.show import explain_or_check
    from strop.config.dialects.component import read_component

    job = read_component(name, context.args, here=here)
    if explain or check:
        say_outputs(job)
    if not explain_or_check(job.loaded, explain=explain, check=check):
        run_job(job)


def run_job(job: Job) -> None:
    """Install what is asked for, train, and fill the outputs."""
    from strop.cli.actions import say_outputs, start
    from strop.components.packages import install

    install(job.packages)
    # Only now, for what is imported from here on may be what was installed.
    from strop.components.outputs import fill, prepare

    prepare(job)
    say_outputs(job)
    start(job.loaded)
    for sentence in fill(job):
        typer.echo(sentence)


def add_to(app: typer.Typer) -> None:
    """Add this command."""
    app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(component)
