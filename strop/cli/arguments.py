"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

RunFile = Annotated[
    Path,
    typer.Argument(
        metavar="RUN.yaml", help="A run file, or a file of verl, Trinity or AzureML.", show_default=False
    ),
]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN_FOLDER", help="A run's folder.", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE",
        help="Overrides in Hydra's grammar: a.b=1, +a.b=1, ~a.b, a='x y', a=[1,2].",
        show_default=False,
    ),
]
Here = Annotated[
    bool,
    typer.Option("--here", help="Set aside, by name, what asks for hardware or engines that are not here."),
]
Checkpoint = Annotated[
    Path | None,
    typer.Option(help="Use the weights of this checkpoint instead of the model's.", show_default=False),
]
