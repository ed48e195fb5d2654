"""Commands on run files and run folders: train, check, explain, evaluate, generate, export,
report, plan."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from strop.cli.arguments import (
    CheckpointOption,
    HereOption,
    MachineOption,
    OverridesArgument,
    RunFileArgument,
    RunFolderArgument,
)
from strop.cli.output import align_columns, echo, print_memory
from strop.errors import ConfigError, MissingExtraError, StropError

if TYPE_CHECKING:
    from strop.config.load.loader import Job, LoadedRun
    from strop.config.schema import Run
    from strop.run.entry.start import RunResult


def train(
    run: RunFileArgument,
    overrides: OverridesArgument = None,
    here: HereOption = False,
    change: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY[=VALUE]",
            help="Continue a stopped run with another value, such as trainer.optimizer.lr=1e-6, or with changed data "
            "or code, such as data.train; may be repeated.",
        ),
    ] = None,
) -> None:
    """Train, or resume a run that was stopped. The file may also be one of verl, Trinity-RFT, TRL or AzureML, or the
    folder of a run."""
    from strop.cli.actions import change_recorded, enter_start_directory, run_job
    from strop.config.load.loader import is_run_folder
    from strop.config.paths import SCRIPT_SUFFIXES
    from strop.reading import read_any

    if run.suffix in SCRIPT_SUFFIXES:
        _train_script(run, overrides or (), here=here, changes=change or ())
        return
    if is_run_folder(run):
        run = enter_start_directory(run)
    values = [each for each in change or () if "=" in each]
    job = read_any(run, [*(overrides or ()), *values], here=here)
    change_recorded(job, change or ())
    run_job(job)


def check(
    run: RunFileArgument,
    overrides: OverridesArgument = None,
    here: HereOption = False,
    machine: MachineOption = None,
) -> None:
    """Check whether a run can start, without loading its model."""
    from strop.cli.actions import check_run
    from strop.config.machine import on_machine, parse_machine
    from strop.reading import read_any

    with on_machine(parse_machine(machine) if machine else None):
        check_run(read_any(run, overrides or (), here=here).loaded)


def explain(
    run: RunFileArgument,
    overrides: OverridesArgument = None,
    here: HereOption = False,
    machine: MachineOption = None,
) -> None:
    """Print what a run will do, and every value with its unit, source and effect."""
    from strop.cli.actions import print_outputs, show_explanation
    from strop.config.machine import on_machine, parse_machine
    from strop.reading import read_any

    with on_machine(parse_machine(machine) if machine else None):
        job = read_any(run, overrides or (), here=here)
        print_outputs(job)
        show_explanation(job.loaded)


def evaluate(
    run: RunFileArgument,
    overrides: OverridesArgument = None,
    checkpoint: CheckpointOption = None,
    here: HereOption = False,
    harness: Annotated[
        str | None,
        typer.Option(
            "--with",
            metavar="lm-eval:TASKS",
            help="Serve the trained model of a run folder, or a model folder, to lm-eval, for these tasks; "
            "arguments after `--` go to lm_eval.",
        ),
    ] = None,
) -> None:
    """Evaluate the initial model of a run file, the last checkpoint of a run folder, or a named checkpoint."""
    if harness is not None:
        if checkpoint is not None or here:
            raise ConfigError(
                "--with evaluates the trained model of a run: leave out --here and --checkpoint, or write the "
                "checkpoint's model to a folder with `strop export RUN --step N --to FOLDER` and evaluate that folder"
            )

        evaluate_with(harness, run, overrides or ())
        return
    from strop import api

    loaded, checkpoint = _policy(run, overrides or (), checkpoint, here=here)
    metrics = api.evaluate(loaded, checkpoint=checkpoint)
    if checkpoint is not None:
        echo(f"checkpoint = {checkpoint}")
    for name, value in metrics.items():
        echo(f"{name} = {value:.6g}")


def generate(
    run: RunFileArgument,
    prompts: Annotated[Path, typer.Option(help="Parquet or JSONL file with one prompt per row.")],
    out: Annotated[
        Path, typer.Option(help="Parquet file to write: the same rows with a column `responses`.")
    ],
    overrides: OverridesArgument = None,
    checkpoint: CheckpointOption = None,
    here: HereOption = False,
) -> None:
    """Sample responses to every prompt of a file, with the initial model of a run file or the last checkpoint of a run
    folder."""
    from strop import api

    loaded, checkpoint = _policy(run, overrides or (), checkpoint, here=here)
    count = api.generate(loaded, prompts, out, checkpoint=checkpoint)
    echo(f"Wrote responses to {count} prompts: {out}")


def _policy(
    run: Path, overrides: Sequence[str], checkpoint: Path | None, *, here: bool
) -> tuple[LoadedRun, Path | None]:
    """The run of a file with its initial model, or that of a folder with its last checkpoint, unless one is named."""
    from strop.config.load.loader import is_run_folder
    from strop.reading import key_owner, read_any

    if not is_run_folder(run):
        return read_any(run, overrides, here=here).loaded, checkpoint
    from strop.run.entry.evaluate import last_checkpoint
    from strop.run.entry.trained_policy import load_policy_run
    from strop.runs.folder import RunFolder

    folder = RunFolder(run)
    loaded = load_policy_run(folder, overrides, here=here, key_owner=key_owner)
    return loaded, checkpoint or last_checkpoint(folder)


def export(
    folder: RunFolderArgument,
    to: Annotated[Path, typer.Option(help="Folder to write.")],
    step: Annotated[
        int | None, typer.Option(help="Step of the checkpoint; by default the last valid one.")
    ] = None,
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"] | None,
        typer.Option(help="Data type of the weights; by default the run's export.dtype."),
    ] = None,
    push_to_hub: Annotated[
        str | None, typer.Option(metavar="ORG/NAME", help="Repository on the Hub to upload the folder to.")
    ] = None,
    private: Annotated[
        bool, typer.Option("--private", help="Create the repository as a private one.")
    ] = False,
) -> None:
    """Convert a run's checkpoint, or a GGUF file, to a Hugging Face folder; a LoRA both as an adapter and merged."""
    from strop import api

    echo(f"Wrote {api.export(folder, to, step=step, dtype=dtype)}")
    if push_to_hub is not None:
        from strop.run.entry.export import push_to_hub as push

        echo(f"Uploaded to {push(to, push_to_hub, private=private)}")


def report(folder: RunFolderArgument) -> None:
    """Write report.html into a run folder."""
    from strop.report.build import write_report

    echo(f"Wrote {write_report(folder)}")


def plan(
    run: RunFileArgument,
    overrides: OverridesArgument = None,
    here: HereOption = False,
    machine: MachineOption = None,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Measure three steps of the run on this machine first.")
    ] = False,
) -> None:
    """Print the memory of each process by purpose, the tokens and seconds of a step and the disk that a run needs."""
    from strop.config.machine import on_machine, parse_machine
    from strop.errors import ConfigError
    from strop.reading import read_any

    if calibrate and machine:
        raise ConfigError("--calibrate measures this machine: leave --machine out.")
    with on_machine(parse_machine(machine) if machine else None):
        for stage in read_any(run, overrides or (), here=here).loaded.runs:
            if calibrate:
                _measure(stage.run)
            _print_budget(stage)


def _measure(run: Run) -> None:
    """Measure the run, and with other numbers of local workers where it has the choice."""
    from strop.config.local_workers import with_workers
    from strop.plan.fit import other_worker_counts
    from strop.run.entry.calibrate import STEPS, calibrate

    others = other_worker_counts(run)
    compared = "".join(f", and of one with trainer.engine.workers={workers}" for workers in others)
    echo(
        f"Training {STEPS} steps of a copy of the run{compared}, in a temporary folder that is deleted afterwards ...\n"
    )
    for each in (run, *(with_workers(run, workers) for workers in others)):
        calibrate(each)


def _print_times(run: Run) -> None:
    """Seconds of a step and of the run, where they were measured on this machine."""
    from strop.config.local_workers import with_workers
    from strop.plan.fit import calibration_lines, other_worker_counts
    from strop.run.entry.calibrate import known_calibration

    found = known_calibration(run)
    if found is None:
        echo("Seconds of a step: not known; `strop plan --calibrate` measures some steps on this machine.")
        return
    compared = {
        workers: known_calibration(with_workers(run, workers)) for workers in other_worker_counts(run)
    }
    others = {workers: other for workers, other in compared.items() if other is not None}
    for line in calibration_lines(run, found, others):
        echo(line)


def _print_budget(loaded: LoadedRun) -> None:
    from strop.config.machine import described_machine
    from strop.errors import PlacementError
    from strop.plan import fit
    from strop.plan.fit import with_machine_defaults
    from strop.plan.placement import describe_plan, machine_of, plan_rows, plan_run

    run = with_machine_defaults(loaded.run)
    place = machine_of(run)
    echo(f"Memory on {place}, in GiB:")
    echo(align_columns(fit.memory_rows(run, place)) + "\n")
    for line in fit.step_lines(run):
        echo(line)
    if described_machine() is None:
        _print_times(loaded.run)
    try:
        placed = plan_run(run)
        echo(f"\n{describe_plan(placed)}\n{align_columns(plan_rows(placed))}")
    except PlacementError as error:
        echo(f"\nNo placement: {error}")
    echo("")
    print_memory(run)


_CONCURRENT = 8
"""Requests that the harness sends at once; the engine batches them."""


def evaluate_with(harness: str, path: Path, arguments: Sequence[str]) -> None:
    """Run lm-eval on the trained model of a run folder, or on a model folder; `arguments` are handed on to it.

    Its results go to `lm-eval` in a run folder, or in this directory, unless `arguments` name an `--output_path`.
    Raises ConfigError for another harness, MissingExtraError where it is not installed, and StropError if it fails.
    """
    from strop.config.load.loader import is_run_folder
    from strop.models.loading import load_config, load_tokenizer
    from strop.run.entry.chat import find_chat_source
    from strop.run.entry.serve import ServiceOptions, open_service

    name, _, tasks = harness.partition(":")
    if name != "lm-eval" or not tasks:
        raise ConfigError(f"--with {harness}: write lm-eval:TASKS, such as --with lm-eval:gsm8k,arc_easy")
    if find_spec("lm_eval") is None:
        raise MissingExtraError("--with lm-eval needs the package lm-eval: pip install 'lm-eval[api]'")
    source = find_chat_source(path, before=False)
    output = path / "lm-eval" if is_run_folder(path) else Path("lm-eval")
    served = path.resolve().stem
    with (
        TemporaryDirectory(prefix="strop-evaluate-") as tokenizer,
        open_service(source, ServiceOptions(served, {}, seed=0)) as access,
    ):
        load_tokenizer(source.model).save_pretrained(tokenizer)
        model = {
            "model": served,
            "base_url": f"{access.url}/completions",
            "tokenizer": tokenizer,
            "max_length": load_config(source.model).get_text_config().max_position_embeddings,
            "num_concurrent": _CONCURRENT,
        }
        command = [sys.executable, "-m", "lm_eval", "--model", "local-completions", "--tasks", tasks]
        command += ["--model_args", ",".join(f"{key}={value}" for key, value in model.items())]
        command += ["--output_path", str(output), *arguments]  # the last one of an option counts
        status = subprocess.run(command, env={**os.environ, "OPENAI_API_KEY": access.api_key}).returncode
    if status:
        raise StropError(f"lm-eval ended with status {status}; its output above says why.")


def _train_script(path: Path, arguments: Sequence[str], *, here: bool, changes: Sequence[str]) -> None:
    """Run a script, or a notebook that trains with TRL, and train where it calls `train()`; `changes` are the values of
    `--change` for its runs."""
    from strop import api
    from strop.cli.actions import change_recorded, run_job
    from strop.compat.registry import key_owner_hint
    from strop.compat.trl.script.run import run_trl_script
    from strop.run.entry.evaluate import last_checkpoint
    from strop.runs.folder import RunFolder

    def start(job: Job) -> RunResult:
        change_recorded(job, changes)
        return run_job(job)

    def evaluate(job: Job, folder: Path | None) -> dict[str, float]:
        checkpoint = None if folder is None else last_checkpoint(RunFolder(folder))
        return api.evaluate(job.loaded, checkpoint=checkpoint)

    run_trl_script(
        path,
        arguments,
        here=here,
        changes=[each for each in changes if "=" in each],
        key_owner=key_owner_hint,
        start=start,
        evaluate=evaluate,
    )
