"""Actions on a loaded run, whichever dialect it came from: train it, check it, print notes about it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

from strop.cli.columns import align_columns
from strop.cli.memory import print_memory
from strop.cli.output import echo
from strop.config.checks.advice import unusual_values
from strop.config.load.loader import LoadedRun
from strop.config.load.placement import OverriddenKey
from strop.config.paths import existing_path
from strop.config.plan.bfloat16 import slow_bfloat16
from strop.config.plan.fit import with_default_microbatch
from strop.config.plan.machine import described_machine
from strop.config.plan.table import describe_plan, machine_of, plan_rows, plan_run
from strop.config.schema import Run
from strop.config.schema.algorithm import DpoConfig, SftConfig
from strop.errors import ConfigError, ModelError
from strop.printable import counted

if TYPE_CHECKING:
    from strop.dialects.job import Job


def run_and_print(loaded: LoadedRun) -> None:
    """Print the notes of a run, train it, and print where the results are.

    In a process of torchrun other than the first one: join the run as a rank, and end with it.
    """
    from strop import api
    from strop.run.distributed.torchrun import join_torchrun_run
    from strop.runs.reader import read_run
    from strop.runs.verdict import verdict

    join_torchrun_run()
    for stage in loaded.runs:
        print_notes(stage)
        print_memory(stage.run)
    result = api.train(loaded)
    if loaded.run.mode == "bench":
        echo(f"Table: {result.folder / 'bench.csv'}. Curves: {result.folder / 'bench.html'}.")
        return
    if result.model is None:
        echo(f"Explored {counted(result.steps, 'step')}. Run folder: {result.folder}.")
        return
    best = "" if result.model_step == result.steps else f" (best checkpoint, of step {result.model_step})"
    echo(
        f"Finished {counted(result.steps, 'step')}. Model: {result.model}{best}. Run folder: {result.folder}."
    )
    if summary := verdict(read_run(result.folder)):
        echo(f"Verdict: {summary}.")


def print_outputs(job: Job) -> None:
    """Print what the outputs of a component will hold."""
    for description in job.output_descriptions:
        echo(description)


def check_run(loaded: LoadedRun) -> None:
    """Print whether a run can start.

    Raises ConfigError if a file or reward that it names, or a scorer of a task source, does not exist, a teacher
    has another vocabulary than the policy, or a row has images that the run cannot use; DataError if
    the sources cannot be read, or one of the first rows cannot be used; ModelError for a tokenizer without a
    chat template.
    """
    from strop.config.load.preflight import hub_models, missing_files
    from strop.data.inspection import inspect_data
    from strop.rewards.known_sources import unknown_sources
    from strop.run.first_rows import check_first_rows
    from strop.run.prompt_images import image_faults

    faults: list[str] = []
    for stage in loaded.runs:
        print_notes(stage)
        found = [*missing_files(stage), *_unknown_rewards(stage), *_missing_workflows(stage)]
        found = found or [*_missing_tools(stage)]
        faults += found or [
            *unknown_sources(stage.run),
            *_teacher_vocabularies(stage),
            *image_faults(stage.run),
        ]
    if faults:
        raise ConfigError(*faults)
    for stage in loaded.runs:
        for line in (*hub_models(stage.run), *inspect_data(stage.run)):
            echo(line)
        check_first_rows(stage.run)
        for advice in (*unusual_values(stage.run), *slow_bfloat16(stage.run, machine_of(stage.run))):
            echo(advice)
        print_plan(stage.run)
        fit = print_memory(stage.run)
        is_too_large = fit is not None and not fit.fits
        verdict = ", and may run out of memory" if is_too_large else ""
        echo(f"The run can start{verdict}. Run folder: {stage.run.folder_path}.")


def _teacher_vocabularies(loaded: LoadedRun) -> Iterator[str]:
    """Yield an error for a teacher with another vocabulary than the policy; models on the Hub are not read."""
    algorithm, model = loaded.run.algorithm, loaded.run.model
    if isinstance(algorithm, SftConfig | DpoConfig) or algorithm.distillation is None:
        return
    folders = [teacher.tokenizer or teacher.path for teacher in algorithm.distillation.teachers]
    if not all(map(existing_path, [model.tokenizer or model.path, *folders])):
        return
    from strop.models.loading import load_tokenizer
    from strop.run.optimize.teachers import check_vocabularies

    try:
        check_vocabularies(algorithm.distillation, load_tokenizer(model))
    except ModelError as error:
        yield f"{loaded.sources['algorithm.distillation.teachers.0.path']}: {error}"


def _unknown_rewards(loaded: LoadedRun) -> Iterator[str]:
    """Yield an error for each unknown built-in reward; a user's own functions are not imported."""
    from strop.config.effective_reward import configured_rewards
    from strop.rewards.resolve import unknown_reward

    functions = {
        f"{key}.functions.{index}.function": component.function
        for key, reward in configured_rewards(loaded.run).items()
        for index, component in enumerate(reward.functions)
    }
    for field, function in functions.items():
        if fault := unknown_reward(function):
            yield f"{loaded.sources[field]}: {fault}"


def _missing_tools(loaded: LoadedRun) -> Iterator[str]:
    """Yield an error for each file of tools or interactions of verl's with an entry that cannot be used."""
    from strop.workflows.tools.config_file import check_classes

    tasksets = {f"data.eval.{index}.": each for index, each in enumerate(loaded.run.data.eval)}
    workflows = {"rollout.workflow": loaded.run.rollout.workflow}
    workflows |= {f"{at}workflow": each.workflow for at, each in tasksets.items() if each.workflow}
    for field, workflow in workflows.items():
        if workflow.name in ("tools", "verl_agents"):
            args = workflow.args.get("tools", {}) if workflow.name == "verl_agents" else workflow.args
            try:
                check_classes(args.get("tool_config"), args.get("interaction_config"))
            except ConfigError as error:
                yield f"{field}.args: {error}"


def _missing_workflows(loaded: LoadedRun) -> Iterator[str]:
    """Yield an error for each workflow that is a class of Trinity's package, or that no file registers."""
    run = loaded.run
    for workflow in (run.rollout.workflow, *(taskset.workflow for taskset in run.data.eval)):
        if workflow is None or workflow.name != "trinity":
            continue
        from strop.workflows.trinity.adapter import missing_workflow

        if fault := missing_workflow(workflow.args):
            yield fault


def print_plan(run: Run) -> None:
    """Print which process gets which GPUs of the run's machine; nothing where it has none and none is described.

    Raises PlacementError for what the machine lacks.
    """
    if run.mode == "bench":
        return
    plan = plan_run(with_default_microbatch(run))
    if not (machine_of(run).gpus or described_machine()):
        return
    echo(describe_plan(plan))
    echo(f"{align_columns(plan_rows(plan))}\n")


class NotedConfig(Protocol):
    """A loaded configuration with notes for its user."""

    @property
    def overridden(self) -> tuple[OverriddenKey, ...]: ...
    @property
    def notes(self) -> tuple[str, ...]: ...


def print_notes(loaded: NotedConfig) -> None:
    """Print the keys that `--here` overrides, and the notes about values without effect."""
    for key in loaded.overridden:
        echo(f"overridden: {key}")
    for note in loaded.notes:
        echo(f"note: {note}")
