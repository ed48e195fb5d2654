"""What is done with a loaded run, whichever dialect it came from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

import typer

from strop.config.load import Loaded, SetAside
from strop.errors import ConfigError, RewardError

if TYPE_CHECKING:
    from strop.config.dialects.component import Job


def start(loaded: Loaded) -> None:
    """Say what was set aside and what has no effect, train, and say where the outcome is."""
    from strop import api

    for stage in loaded.each:
        say_notes(stage)
    result = api.train(loaded)
    if loaded.run.mode == "bench":
        typer.echo(
            f"The table is in {result.folder / 'bench.csv'}, the curves in {result.folder / 'bench.html'}."
        )
        return
    if result.model is None:
        typer.echo(f"{result.steps} steps are explored. All of it is in {result.folder}.")
        return
    done = "1 step is done." if result.steps == 1 else f"{result.steps} steps are done."
    best = (
        "" if result.model_step == result.steps else f", which is that of step {result.model_step}, the best,"
    )
    typer.echo(f"{done} The model{best} is in {result.model}; all else in {result.folder}.")


def say_outputs(job: Job) -> None:
    """Print what a component's outputs will hold."""
    for promise in job.promises:
        typer.echo(promise)


def check_files(loaded: Loaded) -> None:
    """Say that a run can be started. Raises ConfigError where a file that it names is not there."""
    from strop.config.check import missing_files

    faults: list[str] = []
    for stage in loaded.each:
        say_notes(stage)
        faults += [*missing_files(stage), *_unknown_rewards(stage)]
    if faults:
        raise ConfigError("\n".join(dict.fromkeys(faults)))
    for stage in loaded.each:
        typer.echo(f"This run can be started. All of it will be in {stage.run.folder_path}.")


def _unknown_rewards(loaded: Loaded) -> Iterator[str]:
    """A bare word is a built-in's name; functions of the user's own are imported when the run starts."""
    from strop.config.schema.scoring import written_rewards
    from strop.rewards.resolve import find
    from strop.rewards.table import BUILTINS

    named = {
        f"{where}.functions.{index}.function": part.function
        for where, reward in written_rewards(loaded.run).items()
        for index, part in enumerate(reward.functions)
    }
    for field, function in named.items():
        if function.isidentifier() and function not in BUILTINS:
            try:
                find(function)
            except RewardError as error:
                yield f"{loaded.sources[field]}: {error}"


class Read(Protocol):
    """Whatever was read of a configuration."""

    @property
    def set_aside(self) -> tuple[SetAside, ...]: ...
    @property
    def notes(self) -> tuple[str, ...]: ...


def say_notes(loaded: Read) -> None:
    """Print, before anything starts, what `--here` set aside and what was written without effect."""
    for item in loaded.set_aside:
        typer.echo(f"set aside: {item}")
    for note in loaded.notes:
        typer.echo(f"note: {note}")
