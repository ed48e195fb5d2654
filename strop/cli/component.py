"""`strop component`: what AzureML's jobs call."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strop.cli.arguments import Here
from strop.errors import ConfigError

if TYPE_CHECKING:
    from strop.config.dialects.component import Job


def component(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="rft_trainer, verl_trainer or grpo.", show_default=False)],
    here: Here = False,
    explain: Annotated[bool, typer.Option("--explain", help="Say what the job would do.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Say whether the job can be started.")] = False,
) -> None:
    """Run what an AzureML component runs: `--input value ...`, all as text, and `--output folder`."""
    from strop.cli.show import explain_or_check
    from strop.config.dialects.component import read_component

    job = read_component(name, context.args, here=here)
    if not explain_or_check(job.loaded, explain=explain, check=check):
        run_job(job)


def run_job(job: Job) -> None:
    """Install what is asked for, train, and fill the outputs."""
    from strop.cli.actions import start

    install(job.packages)
    start(job.loaded)
    fill(job)


def install(packages: Sequence[str]) -> None:
    """Install packages with pip, and show what it does. Raises ConfigError where it cannot."""
    if not packages:
        return
    command = [sys.executable, "-m", "pip", "install", "--no-input", *packages]
    typer.echo(f"pypi_packages_override: pip install {' '.join(packages)}")
    done = subprocess.run(command, check=False)
    if done.returncode != 0:
        raise ConfigError(
            f"pypi_packages_override: pip could not install {' '.join(packages)} (exit code "
            f"{done.returncode}); what it says stands above."
        )


def fill(job: Job) -> None:
    """Copy the trained model into the outputs that ask for it."""
    model = job.loaded.run.folder_path / "model"
    for output in job.model_outputs:
        _copy(model, output)
        typer.echo(f"The model is in {output} too.")


def _copy(model: Path, output: Path) -> None:
    try:
        shutil.copytree(model, output, dirs_exist_ok=True)
    except OSError as error:
        raise ConfigError(f"The model in {model} could not be copied to {output}: {error}.") from None


def add_to(app: typer.Typer) -> None:
    """Add this command."""
    app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(component)
