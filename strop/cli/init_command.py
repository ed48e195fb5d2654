"""`strop init`: write a first run file from flags or answers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from strop.cli.output import echo
from strop.errors import ConfigError


def init(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Run file to write.")] = Path("run.yaml"),
    model: Annotated[str | None, typer.Option(help="Model folder, GGUF file, or name on the Hub.")] = None,
    train: Annotated[
        str | None, typer.Option(help="Training tasks: JSONL, Parquet, CSV, or a Hub name.")
    ] = None,
    reward: Annotated[str | None, typer.Option(help="Built-in reward, or file.py:function.")] = None,
    prompt: Annotated[str, typer.Option(help="Column of the prompts.")] = "prompt",
    answer: Annotated[str, typer.Option(help="Column of the answers.")] = "answer",
    held_out: Annotated[
        str | None, typer.Option("--eval", help="Held-out tasks.", show_default=False)
    ] = None,
    steps: Annotated[int, typer.Option(help="Number of training steps.", min=1)] = 100,
    max_response_tokens: Annotated[int, typer.Option(help="Maximum length of a response.", min=1)] = 256,
    lora: Annotated[bool, typer.Option("--lora", help="Train an adapter instead of all weights.")] = False,
    plain: Annotated[
        bool, typer.Option("--plain", help="Prompts are plain text, without a chat template.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Write a first run file with comments, and check it; asks for what the options do not say."""
    from strop.cli.actions import check_run
    from strop.config.first_run import FirstRun
    from strop.config.load.loader import load_run

    if file.exists() and not force:
        raise ConfigError(f"{file} exists. Write another name, or --force to replace it.")
    values = FirstRun(
        model=model or _ask("Model (folder, GGUF file, or name on the Hub)", "--model"),
        train=train or _ask("Training tasks (JSONL, Parquet, CSV, or a name on the Hub)", "--train"),
        reward=reward or _ask("Reward (exact, gsm8k, math, ..., or file.py:function)", "--reward"),
        prompt=prompt,
        answer=answer,
        eval=held_out,
        steps=steps,
        lora=lora,
        max_response_tokens=max_response_tokens,
        chat=not plain,
    )
    file.write_text(values.text(), encoding="utf-8")
    echo(f"Wrote {file}. Train with `strop train {file}`.")
    check_run(load_run(file))


def _ask(question: str, option: str) -> str:
    """Ask in a terminal. Raises ConfigError where nobody can answer."""
    if not sys.stdin.isatty():
        raise ConfigError(f"{option} is missing, and there is no terminal to ask in. Write the option.")
    return str(typer.prompt(question))


def add_to(app: typer.Typer) -> None:
    """Add the command to an app."""
    app.command()(init)
