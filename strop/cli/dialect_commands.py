"""Commands for other tools: `strop verl`, `trinity`, `trl` and `component` run their configurations and jobs,
`strop convert` and `strop import` make run files of them, and back."""

from __future__ import annotations

from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Annotated

import typer

from strop.cli.arguments import HereOption, OverridesArgument, RunFileArgument
from strop.cli.command_group import CommandGroup
from strop.cli.output import align_columns, echo
from strop.errors import ConfigError
from strop.workers.files import atomic_write

if TYPE_CHECKING:
    from strop.compat.convert import Conversion
    from strop.compat.launch.importer import ImportedCommand
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
    from strop.cli.actions import show_scores
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
    from strop.cli.actions import explain_or_check, run_job
    from strop.config.load.loader import Job

    if not explain_or_check(loaded, explain=explain, check=check):
        run_job(Job(loaded))


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
    from strop.cli.actions import explain_or_check, print_outputs, run_job
    from strop.compat.azureml.reader import read_component
    from strop.compat.registry import key_owner_hint

    job = read_component(name, context.args, here=here, key_owner=key_owner_hint)
    if explain or check:
        print_outputs(job)
    if not explain_or_check(job.loaded, explain=explain, check=check):
        run_job(job)


def convert(
    run: RunFileArgument,
    to: Annotated[
        str,
        typer.Option(help="strop, verl, trinity, trl, rft_trainer, verl_trainer or grpo."),
    ] = "strop",
    source: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="Dialect of the file, such as trl or verl-sft; by default it is detected.",
            show_default=False,
        ),
    ] = None,
    overrides: OverridesArgument = None,
    output: Annotated[
        Path | None, typer.Option(help="File to write; by default standard output.", show_default=False)
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Fail, and write nothing, if a value cannot be converted.")
    ] = False,
    here: Annotated[
        bool,
        typer.Option(
            "--here", "--local", help="Accepted as in the other commands; a conversion always behaves so."
        ),
    ] = False,
) -> None:
    """Write a configuration in another dialect, and list the values that it cannot express.

    The file may be a run file or a file of verl, Trinity-RFT, TRL or AzureML, as for `strop train`.
    """
    from strop.compat.convert import convert as convert_job
    from strop.config.save import yaml_text
    from strop.reading import read_any

    job = read_any(run, overrides or (), here=True, dialect=source)
    for note in dict.fromkeys(note for stage in job.loaded.runs for note in stage.notes):
        echo(f"note: {note}", err=True)
    conversion = convert_job(job, to)
    _print_differences(conversion, to)
    if strict and conversion.unsupported:
        raise ConfigError(
            f"{run} cannot be converted to {to} without a difference (--strict); no file is written."
        )
    text = f"# From {run.name}, by strop convert.\n{yaml_text(conversion.values)}"
    if output is None:
        echo(text, newline=False)
        return
    try:
        target = output.resolve()
        if target.is_file() or not target.exists():
            atomic_write(target, text)
        else:  # a terminal or a pipe
            target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{output} cannot be written: {error.strerror}.") from None
    echo(f"Wrote {output}.", err=True)


def _print_differences(conversion: Conversion, to: str) -> None:
    for note in conversion.notes:
        echo(f"note: {note}", err=True)
    if not conversion.unsupported:
        echo(f"Converted to {to} without a difference: read back, it is the same run.", err=True)
    training = [one for one in conversion.unsupported if one.affects_training]
    others = [one for one in conversion.unsupported if not one.affects_training]
    for effect, found in (("changes training", training), ("does not change training", others)):
        if found:
            echo(f"Not expressible in {to}; {effect}:", err=True)
            rows = ((one.field, one.value, one.target_value, one.reason) for one in found)
            table = align_columns([("field", "here", f"in {to}", "why"), *rows])
            echo(indent(table, "  "), err=True)


def import_script(
    script: Annotated[
        Path, typer.Argument(metavar="LAUNCH.sh", help="Launch script, in bash.", show_default=False)
    ],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Arguments of the script.", show_default=False)
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            help="Run file to write; by default the script's name with .yaml, in this folder.",
            show_default=False,
        ),
    ] = None,
    only: Annotated[
        int | None,
        typer.Option(metavar="N", help="Number of the only command to import.", show_default=False),
    ] = None,
) -> None:
    """Write a run file for each training command that a launch script would run, without running it.

    The script runs in bash, with recorders in place of all programs, and can write no file and use no network.
    """
    from strop.compat.launch.importer import import_script as find_commands

    found, notices = find_commands(script, arguments or ())
    for notice in notices:
        echo(f"note: {notice}", err=True)
    if only is not None and not 1 <= only <= len(found):
        raise ConfigError(
            f"--only {only}: the script runs {len(found)} training commands; write a number from 1 to {len(found)}."
        )
    path = output or Path(f"{script.stem}.yaml")
    for number, command in enumerate(found, 1):
        if only is None or number == only:
            several = len(found) > 1 and only is None
            echo(f"{number}. {command.shown}")
            _import(command, path.with_stem(f"{path.stem}-{number}") if several else path, script)


def _import(command: ImportedCommand, path: Path, script: Path) -> None:
    """Write the run file of one command, and print how to run it."""
    if not command.is_training:
        echo(f"   trains nothing, so it needs no run file. Run: {command.strop_command}")
        return
    from strop.compat.convert import convert
    from strop.config.save import yaml_text

    job = command.read()
    for note in job.loaded.notes:
        echo(f"   note: {note}", err=True)
    conversion = convert(job, "strop")
    for note in conversion.notes:
        echo(f"   note: {note}", err=True)
    try:
        if path.exists():
            raise ConfigError(f"{path} exists already; name another file with --output.")
        atomic_write(path, f"# From {script.name}, by strop import.\n{yaml_text(conversion.values)}")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}.") from None
    if command.command.folder != Path.cwd():
        echo(f"   note: relative paths in it are relative to {command.command.folder}.", err=True)
    echo(f"   wrote {path}. Run: strop train {path}")
    echo(f"   or, with the keys of the script: {command.strop_command} --here")
