"""`strop verl`, `strop trinity`, `strop trl` and `strop component`: run the configurations and jobs of other tools."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strop.cli.arguments import HereOption, OverridesArgument
from strop.cli.command_group import CommandGroup
from strop.cli.output import echo

if TYPE_CHECKING:
    from strop.config.load.loader import LoadedRun


verl = typer.Typer(
    cls=CommandGroup,
    help="Run verl's command lines, with the same keys and the same defaults.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


ConfigOption = Annotated[
    Path | None, typer.Option(help="Complete YAML file that the overrides apply to.", show_default=False)
]
ConfigPathOption = Annotated[
    str | None,
    typer.Option("--config-path", "-cp", help="Folder of the configuration.", show_default=False),
]
ConfigNameOption = Annotated[
    str | None,
    typer.Option(
        "--config-name",
        "-cn",
        help="Name of the configuration: a YAML file in the folder, or one of verl's own.",
        show_default=False,
    ),
]
ConfigDirOption = Annotated[
    str | None,
    typer.Option("--config-dir", "-cd", help="Additional folder of configurations.", show_default=False),
]
ExplainOption = Annotated[bool, typer.Option("--explain", help="Print what the run would do.")]
CheckOption = Annotated[bool, typer.Option("--check", help="Check whether the run can start.")]


@verl.command()
def ppo(
    overrides: OverridesArgument = None,
    config: ConfigOption = None,
    config_path: ConfigPathOption = None,
    config_name: ConfigNameOption = None,
    config_dir: ConfigDirOption = None,
    here: HereOption = False,
    explain: ExplainOption = False,
    check: CheckOption = False,
) -> None:
    """Train as `python -m verl.trainer.main_ppo key=value ...` does."""
    from strop.compat.hydra import ConfigSelection
    from strop.compat.registry import key_owner_hint
    from strop.compat.verl.ppo_trainer import read_verl

    selection = ConfigSelection(config, config_name, config_path, config_dir)
    loaded = read_verl(overrides or (), selection=selection, here=here, key_owner=key_owner_hint)
    _run(loaded, explain=explain, check=check)


@verl.command()
def sft(
    overrides: OverridesArgument = None,
    config: ConfigOption = None,
    config_path: ConfigPathOption = None,
    config_name: ConfigNameOption = None,
    config_dir: ConfigDirOption = None,
    here: HereOption = False,
    explain: ExplainOption = False,
    check: CheckOption = False,
) -> None:
    """Fine-tune as `python -m verl.trainer.fsdp_sft_trainer key=value ...` does."""
    from strop.compat.hydra import ConfigSelection
    from strop.compat.registry import key_owner_hint
    from strop.compat.verl.sft_engine import read_verl_sft

    selection = ConfigSelection(config, config_name, config_path, config_dir)
    loaded = read_verl_sft(overrides or (), selection=selection, here=here, key_owner=key_owner_hint)
    _run(loaded, explain=explain, check=check)


@verl.command(name="eval")
def evaluate(
    overrides: OverridesArgument = None,
    config: ConfigOption = None,
    config_path: ConfigPathOption = None,
    config_name: ConfigNameOption = None,
    config_dir: ConfigDirOption = None,
    explain: Annotated[bool, typer.Option("--explain", help="Print what would be scored, and how.")] = False,
) -> None:
    """Score a file of responses as `python -m verl.trainer.main_eval key=value ...` does."""
    from strop.compat.hydra import ConfigSelection
    from strop.compat.registry import key_owner_hint
    from strop.compat.verl.evaluation import describe_evaluation, read_verl_eval

    selection = ConfigSelection(config, config_name, config_path, config_dir)
    scoring, notes = read_verl_eval(overrides or (), selection=selection, key_owner=key_owner_hint)
    if explain:
        echo(describe_evaluation(scoring))
    for note in notes:
        echo(f"note: {note}")
    if explain:
        return
    from strop.cli.show import show_scores
    from strop.run.entry.score_file import ResponseFile, score_file

    file = ResponseFile(scoring.path, scoring.prompt, scoring.responses, scoring.source, scoring.answer)
    show_scores(score_file(file, scoring.reward))


@verl.command()
def generate(
    overrides: OverridesArgument = None,
    config: ConfigOption = None,
    config_path: ConfigPathOption = None,
    config_name: ConfigNameOption = None,
    config_dir: ConfigDirOption = None,
    here: HereOption = False,
    explain: Annotated[bool, typer.Option("--explain", help="Print what would be sampled, and how.")] = False,
) -> None:
    """Sample responses to prompts as `python -m verl.trainer.main_generation key=value ...` does."""
    from strop.cli.actions import print_notes
    from strop.compat.hydra import ConfigSelection
    from strop.compat.registry import key_owner_hint
    from strop.compat.verl.generation import describe_generation, read_verl_generate

    selection = ConfigSelection(config, config_name, config_path, config_dir)
    read = read_verl_generate(overrides or (), selection=selection, here=here, key_owner=key_owner_hint)
    if explain:
        typer.echo(describe_generation(read.generation))
    print_notes(read)
    if explain:
        return
    from strop.run.entry.generate import generate_file

    count = generate_file(read.generation)
    echo(f"Wrote responses to {count} prompts: {read.generation.output}")


@verl.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def merge(context: typer.Context) -> None:
    """Convert a checkpoint to a Hugging Face folder as `python -m verl.model_merger merge` does.

    --local_dir is a run folder or a checkpoint of Strop, or a folder with verl's FSDP shards; --target_dir is
    the folder to write. `strop keys verl-merge` lists all options; each may also be written as key=value.
    """
    from strop.compat.registry import key_owner_hint
    from strop.compat.verl.model_merger import read_verl_merge

    merging = read_verl_merge(context.args, key_owner=key_owner_hint)
    from strop.compat.verl.fsdp_checkpoint import VerlShardOptions, merge

    shards = VerlShardOptions(merging.hf_model_path, merging.lora_alpha)
    echo(f"Wrote {merge(merging.local_dir, merging.target_dir, shards)}")


def trinity(
    file: Annotated[
        Path, typer.Argument(metavar="FILE.yaml", help="Configuration file.", show_default=False)
    ],
    overrides: OverridesArgument = None,
    here: HereOption = False,
    explain: ExplainOption = False,
    check: CheckOption = False,
    plugin_dir: Annotated[
        str | None,
        typer.Option("--plugin-dir", help="Folder of Python files that register workflows and rewards."),
    ] = None,
) -> None:
    """Train as `trinity run --config FILE.yaml` does."""
    import os

    from strop.compat.registry import key_owner_hint
    from strop.compat.trinity.reader import read_trinity
    from strop.compat.trinity.workflows import PLUGIN_FOLDERS

    if plugin_dir is not None:
        os.environ[PLUGIN_FOLDERS] = plugin_dir
    loaded = read_trinity(file, overrides or (), here=here, key_owner=key_owner_hint)
    _run(loaded, explain=explain, check=check)


def trl(
    context: typer.Context,
    program: Annotated[
        str, typer.Argument(help="grpo, rloo, sft, dpo, kto, reward, cpo or orpo.", show_default=False)
    ],
    here: HereOption = False,
    explain: ExplainOption = False,
    check: CheckOption = False,
) -> None:
    """Train as `trl grpo --key value ...`, `rloo`, `sft`, `dpo`, `kto` and `reward` do, with `--config FILE` and the
    same keys.

    `cpo` and `orpo` have the keys of CPOConfig and ORPOConfig, for which TRL has no program.

    `strop keys trl` lists the keys of GRPO, and `strop keys trl-dpo` those of DPO and so on.
    """
    from strop.compat.registry import key_owner_hint
    from strop.compat.trl.reader import find_program, read_trl_arguments

    loaded = read_trl_arguments(find_program(program), context.args, here=here, key_owner=key_owner_hint)
    _run(loaded, explain=explain, check=check)


def _run(loaded: LoadedRun, *, explain: bool, check: bool) -> None:
    """Run what was read, or explain or check it instead."""
    from strop.cli.actions import run_job
    from strop.cli.show import explain_or_check
    from strop.config.load.loader import Job

    if not explain_or_check(loaded, explain=explain, check=check):
        run_job(Job(loaded))


def add_to(app: typer.Typer) -> None:
    """Add the commands to an app."""
    app.command()(trinity)
    app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(trl)
    app.add_typer(verl, name="verl")


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


def add_component_to(app: typer.Typer) -> None:
    """Add the command to an app."""
    app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(component)
