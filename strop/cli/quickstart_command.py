"""`strop quickstart`: trains a small model on sums, without a download; or writes the notebook of a first run."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

import strop
from strop.cli.output import echo
from strop.errors import ConfigError

_PACKAGE = Path(strop.__file__).parent
_EXAMPLES = next(
    (
        each
        for each in (_PACKAGE / "examples", _PACKAGE.parent / "examples")
        if (each / "quickstart").is_dir()
    ),
    _PACKAGE / "examples",
)
"""Package data of a wheel, or the folder of a clone."""
_NOTEBOOK = "first_run.ipynb"


def quickstart(
    steps: Annotated[int, typer.Option(help="Number of training steps.", min=1)] = 200,
    seed: Annotated[int, typer.Option(help="Seed of the order of the data and of every draw.")] = 1,
    out: Annotated[Path, typer.Option(help="Folder of the data, the models and the run.")] = Path(
        "runs/quickstart"
    ),
    notebook: Annotated[
        bool, typer.Option("--notebook", help=f"Write {_NOTEBOOK} here instead, a first run in cells.")
    ] = False,
) -> None:
    """Train a small random model on two-digit sums by GRPO, on a CPU and without a download."""
    if notebook:
        if Path(_NOTEBOOK).exists():
            raise ConfigError(f"{_NOTEBOOK} exists here. Move it, or go to another folder.")
        shutil.copyfile(_EXAMPLES / "notebook" / _NOTEBOOK, _NOTEBOOK)
        echo(
            f"Wrote {_NOTEBOOK}. Open it with `jupyter lab {_NOTEBOOK}`, or with an editor that runs notebooks."
        )
        return
    sys.path.insert(0, str(_EXAMPLES / "quickstart"))
    from quickstart import run

    run(out, seed=seed, steps=steps)
    echo(f"Look at it with `strop show {out}/sums`, ask it with `strop chat {out}/sums`.")


def add_to(app: typer.Typer) -> None:
    """Add the command to an app."""
    app.command()(quickstart)
