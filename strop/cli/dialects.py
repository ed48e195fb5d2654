"""The commands on other tools' configurations."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from strop.cli.arguments import Here, Overrides
from strop.cli.group import Group

verl = typer.Typer(
    cls=Group,
    help="Run what verl's users run: the same keys, the same defaults.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


Config = Annotated[
    Path | None, typer.Option(help="A whole YAML file, under the overrides.", show_default=False)
]
Explain = Annotated[bool, typer.Option("--explain", help="Say what the run would do.")]
Check = Annotated[bool, typer.Option("--check", help="Say whether the run can be started.")]


@verl.command()
def ppo(
    overrides: Overrides = None,
    config: Config = None,
    here: Here = False,
    explain: Explain = False,
    check: Check = False,
) -> None:
    """What `python -m verl.trainer.main_ppo key=value ...` does."""
    from strop.cli.actions import start
    from strop.cli.show import explain_or_check
    from strop.config.dialects.verl import read_verl

    loaded = read_verl(overrides or (), config=config, here=here)
    if not explain_or_check(loaded, explain=explain, check=check):
        start(loaded)


@verl.command()
def sft(
    overrides: Overrides = None,
    config: Config = None,
    here: Here = False,
    explain: Explain = False,
    check: Check = False,
) -> None:
    """What `python -m verl.trainer.fsdp_sft_trainer key=value ...` does."""
    from strop.cli.actions import start
    from strop.cli.show import explain_or_check
    from strop.config.dialects.verl.sft import read_verl_sft

    loaded = read_verl_sft(overrides or (), config=config, here=here)
    if not explain_or_check(loaded, explain=explain, check=check):
        start(loaded)


@verl.command(name="eval")
def evaluate(
    overrides: Overrides = None,
    config: Config = None,
    explain: Annotated[bool, typer.Option("--explain", help="Say what would be scored, and how.")] = False,
) -> None:
    """What `python -m verl.trainer.main_eval key=value ...` does: score a file of answers."""
    from strop.config.dialects.verl.evaluation import in_words, read_verl_eval

    scoring, notes = read_verl_eval(overrides or (), config=config)
    if explain:
        typer.echo(in_words(scoring))
    for note in notes:
        typer.echo(f"note: {note}")
    if explain:
        return
    from strop.cli.show import show_figures
    from strop.run.score_file import AnswerFile, score_file

    file = AnswerFile(scoring.path, scoring.prompt, scoring.responses, scoring.source, scoring.answer)
    show_figures(score_file(file, scoring.reward))


@verl.command()
def generate(
    overrides: Overrides = None,
    config: Config = None,
    here: Here = False,
) -> None:
    """What `python -m verl.trainer.main_generation key=value ...` does: answer a file of prompts."""
    from strop.cli.actions import say_notes
    from strop.config.dialects.verl.generation import read_verl_generate

    read = read_verl_generate(overrides or (), config=config, here=here)
    say_notes(read)
    from strop.run.generate import answer_file

    count = answer_file(read.generation)
    typer.echo(f"Answered {count} prompts: {read.generation.output}")


@verl.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def merge(context: typer.Context) -> None:
    """What `python -m verl.model_merger merge` does: a checkpoint becomes a Hugging Face folder.

    --local_dir is a run folder or checkpoint of Strop's, or a folder with verl's FSDP shards; --target_dir
    the folder to write. `strop keys verl-merge` lists all; each may also be written as key=value.
    """
    from strop.config.dialects.verl.merging import read_verl_merge

    merging = read_verl_merge(context.args)
    from strop.run.merge import Shards, merge

    shards = Shards(merging.hf_model_path, merging.lora_alpha)
    typer.echo(f"Wrote {merge(merging.local_dir, merging.target_dir, shards)}")


def trinity(
    file: Annotated[Path, typer.Argument(metavar="FILE.yaml", help="The file.", show_default=False)],
    overrides: Overrides = None,
    here: Here = False,
    explain: Explain = False,
    check: Check = False,
) -> None:
    """What `trinity run --config FILE.yaml` does."""
    from strop.cli.actions import start
    from strop.cli.show import explain_or_check
    from strop.config.dialects.trinity import read_trinity

    loaded = read_trinity(file, overrides or (), here=here)
    if not explain_or_check(loaded, explain=explain, check=check):
        start(loaded)


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    app.command()(trinity)
    app.add_typer(verl, name="verl")
