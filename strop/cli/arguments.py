"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

RunFileArgument = Annotated[
    Path,
    typer.Argument(
        metavar="RUN",
        help="Run file, folder of a run, or a configuration file of verl, Trinity-RFT, TRL or AzureML.",
        show_default=False,
    ),
]
RunFolderArgument = Annotated[
    Path, typer.Argument(metavar="RUN_FOLDER", help="Folder of a run.", show_default=False)
]


def _complete_key(incomplete: str) -> list[str]:
    """Keys of the run file that an incomplete override may be meant to set."""
    from strop.config.schema.run import all_keys

    mark = incomplete[: len(incomplete) - len(incomplete.lstrip("+~"))]
    found = sorted({f"{mark}{key}" for key in all_keys() if f"{mark}{key}".startswith(incomplete)})
    return found if mark.startswith("~") else [f"{key}=" for key in found]


OverridesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE",
        help="Overrides in Hydra's grammar: a.b=1, +a.b=1, ~a.b, a='x y', a=[1,2].",
        show_default=False,
        autocompletion=_complete_key,
    ),
]
HereOption = Annotated[
    bool,
    typer.Option(
        "--here",
        "--local",
        help="Run on this machine: override settings for hardware and engines that it does not have.",
    ),
]
MachineOption = Annotated[
    str | None,
    typer.Option(
        "--machine",
        help="Machine to plan for, such as 8xH100-80GB, 2x8xH100-80GB or cpu; by default this one.",
        show_default=False,
    ),
]
CheckpointOption = Annotated[
    Path | None,
    typer.Option(
        help="Checkpoint to take the weights from; by default the last one of a run folder, and the initial model of a "
        "run file.",
        show_default=False,
    ),
]
