"""Import and calls of the user's code that a run names: rewards, workflows, tools, datasets, operators, algorithms.

A process of its own does it, so that code that ends its process, or never returns, is a refusal. `examine` is the work
of that process; a run without code of the user needs none.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from multiprocessing.connection import Pipe

from strop.config.model_files import folder_takes_images
from strop.config.paths import existing_path
from strop.config.redact import set_environment
from strop.config.schema.buffer import CustomOperatorConfig
from strop.config.schema.data import EvalTasksetConfig, TasksetConfig
from strop.config.schema.rollout import WorkflowConfig
from strop.config.schema.run import Run, configured_rewards
from strop.config.schema.task_pipeline import CustomTaskOperatorConfig
from strop.errors import ConfigError, ModelError, RewardError, StropError
from strop.extensions import extension
from strop.python_rewards import PythonRewards
from strop.rewards.execution.worker_pool import START_SECONDS
from strop.rewards.registry import builtin_reward
from strop.rewards.scorable_tasks import scoring_faults
from strop.run.check.reference_answers import score_reference_answers
from strop.run.check.refusals import Findings
from strop.workers.child_process import ErrorReport, describe_exit, spawn_module

Say = Callable[[str], None]
"""Names the work that begins now."""
Work = tuple[str, Callable[[], Findings]]
"""A piece of work, with its name in messages."""
LIMIT_SECONDS = 120.0
"""Time limit of one piece of work on the user's code, such as the import of all rewards."""
_SCORING = "the reward functions on reference answers"
"""Work without a limit of its own: each call has that of `reward.timeout_seconds`."""
_STOP_SECONDS = 5.0
_ROWS = 100


def check_user_code(
    run: Run, rewards: PythonRewards | None, limit_seconds: float = LIMIT_SECONDS
) -> Findings:
    """Import the user's code of a run, call it on small examples, and score reference answers.

    `rewards` are functions of the program that configures the run, which are in this process already. Raises what the
    loading of data, models and sandboxes raises.
    """
    if rewards is not None or not any(_named_code(run)):
        return examine(run, rewards, lambda work: None)
    return _examine_apart(run, limit_seconds)


def _named_code(run: Run) -> Iterator[str]:
    """Code of the user that the run names."""
    yield from run.model.imports
    yield from run.algorithm.user_functions.values()
    for reward in configured_rewards(run).values():
        yield from (part.function for part in reward.functions if not builtin_reward(part.function))
    yield from (workflow.name for workflow in _workflows(run).values() if _has_code(workflow))
    yield from (taskset.dataset.name for taskset in _custom_tasksets(run).values() if taskset.dataset)
    yield from (section.operator for section in _operators(run))


def _workflows(run: Run) -> dict[str, WorkflowConfig]:
    if run.algorithm.is_offline:
        return {}
    found = {"rollout.workflow": run.rollout.workflow}
    own = {f"data.eval.{index}.workflow": each.workflow for index, each in enumerate(run.data.eval)}
    return found | {field: workflow for field, workflow in own.items() if workflow is not None}


def _has_code(workflow: WorkflowConfig) -> bool:
    return workflow.name not in ("single_turn", "math") or bool(workflow.args)


def _custom_tasksets(run: Run) -> dict[str, TasksetConfig]:
    sections: dict[str, TasksetConfig] = {**run.data.training_tasksets()}
    sections |= {f"data.eval.{index}": each for index, each in enumerate(run.data.eval)}
    sections |= {f"data.demonstrations.{index}": each for index, each in enumerate(run.data.demonstrations)}
    return {field: section for field, section in sections.items() if section.dataset is not None}


def _operators(run: Run) -> list[CustomTaskOperatorConfig | CustomOperatorConfig]:
    tasks = run.data.pipeline.operators if run.data.pipeline else ()
    return [
        section
        for section in (*tasks, *run.buffer.pipeline)
        if isinstance(section, CustomTaskOperatorConfig | CustomOperatorConfig)
    ]


def examine(run: Run, rewards: PythonRewards | None, say: Say) -> Findings:
    """Import and call the code in this process. Faults of one kind of code end the examination."""
    found = Findings()
    for work, part in _parts(run, rewards):
        say(work)
        try:
            found.add(part())
        except (ConfigError, RewardError, ModelError) as error:
            found.faults.append(str(error))
        if found.faults:
            break
    return found


def _parts(run: Run, rewards: PythonRewards | None) -> Iterator[Work]:
    if run.model.imports:
        yield f"model.imports ({', '.join(run.model.imports)})", partial(_import_modules, run)
    functions = [part.function for reward in configured_rewards(run).values() for part in reward.functions]
    named = f" ({', '.join(dict.fromkeys(functions))})" if functions else ""
    yield f"the import of the reward functions{named}", partial(_check_rewards, run, rewards)
    for field, workflow in _workflows(run).items():
        if _has_code(workflow):
            yield f"{field} {workflow.name}", partial(_load_workflow, run, field, workflow)
    if run.algorithm.user_functions:
        yield "algorithm.advantages and algorithm.loss", partial(_check_algorithm, run)
    for section in _operators(run):
        yield f"the operator {section.operator}", partial(_make_operator, section)
    for field, taskset in _custom_tasksets(run).items():
        yield f"{field}.dataset", partial(_read_dataset, run, field, taskset)
    yield _SCORING, partial(score_reference_answers, run, rewards)


def _import_modules(run: Run) -> Findings:
    from strop.config.user_code import import_user_module

    for name in run.model.imports:
        import_user_module(name, "model.imports", ModelError)
    return Findings(checked=[f"model.imports: imported {', '.join(run.model.imports)}"])


def _check_rewards(run: Run, rewards: PythonRewards | None) -> Findings:
    return Findings(faults=list(scoring_faults(run, rewards)))


def _load_workflow(run: Run, field: str, workflow: WorkflowConfig) -> Findings:
    from strop.workflows.registry import load_workflow

    if workflow.name in ("verifiers", "openenv"):
        return Findings(unchecked=[f"{field} {workflow.name}: the environment was not loaded"])
    if (args := workflow.tool_args) is not None:
        files = import_module(extension("verl").tool_files)
        files.check_classes(args.get("tool_config"), args.get("interaction_config"))
        if files.names_servers(args.get("tool_config")):
            return Findings(
                unchecked=[f"{field} {workflow.name}: its MCP servers were neither started nor contacted"]
            )
    with set_environment(run.rollout.env):
        load_workflow(workflow)
    return Findings(
        checked=[f"{field} {workflow.name}: its code and arguments"],
        unchecked=[f"{field} {workflow.name}: no rollout was run"],
    )


def _check_algorithm(run: Run) -> Findings:
    from strop.algorithms.registry import make_algorithm

    make_algorithm(run.algorithm).check()
    named = run.algorithm.user_functions.values()
    return Findings(checked=[f"algorithm: {', '.join(named)} on a small example"])


def _make_operator(section: CustomTaskOperatorConfig | CustomOperatorConfig) -> Findings:
    if isinstance(section, CustomTaskOperatorConfig):
        from strop.pipelines.tasks.registry import CustomTaskOperator

        CustomTaskOperator(section)
    else:
        from strop.pipelines.experience_pipeline import load_operator

        load_operator(section)
    return Findings(
        checked=[f"the operator {section.operator}: its class and arguments"],
        unchecked=[f"the operator {section.operator}: called with no row"],
    )


def _read_dataset(run: Run, field: str, taskset: TasksetConfig) -> Findings:
    from strop.data.offline_dataset import load_offline_dataset
    from strop.data.taskset import load_taskset
    from strop.run.tokenizer import load_run_tokenizer, load_training_tokens

    name = taskset.dataset.name if taskset.dataset else ""
    if existing_path(run.model.tokenizer or run.model.path) is None:
        return Findings(unchecked=[f"{field}: rows of the dataset class {name}: there is no tokenizer here"])
    if folder_takes_images(run.model.path):
        return Findings(unchecked=[f"{field}: rows of the dataset class {name}: they may have images"])
    tokenizer = load_run_tokenizer(run)
    tokens = load_training_tokens(run, tokenizer, only_local=True)
    limit = min(_ROWS, taskset.limit_tasks or _ROWS)
    first, short = taskset.model_copy(update={"limit_tasks": limit}), field.removeprefix("data.")
    is_sampled = isinstance(taskset, EvalTasksetConfig) and taskset.is_sampled
    is_trained = run.algorithm.is_offline or taskset.is_offline
    load: Callable[..., object] = load_taskset
    if is_trained and not is_sampled:
        load = partial(load_offline_dataset, reward_model=run.algorithm.reward_model)
    load(first, run.data, tokenizer, name=short, seed=run.seed, shuffle=False, tokens=tokens)
    return Findings(
        checked=[f"{field}: the first rows of the dataset class {name}"],
        unchecked=[f"{field}: rows of the dataset class {name} after the first {limit}"],
    )


@dataclass(frozen=True, slots=True)
class Done:
    """Last message of the worker: what it found, or the error that it raised."""

    result: Findings | StropError


def _examine_apart(run: Run, limit_seconds: float) -> Findings:
    """`examine` in a process of its own, with the limits of a reward worker.

    A piece of work that ends the process, or takes longer than `limit_seconds`, is a fault that names it.
    """
    connection, child_end = Pipe()
    report = ErrorReport()
    with connection, contextlib.closing(report):
        with child_end:
            inherited = (child_end.fileno(), report.fileno())
            process = spawn_module(
                "strop.run.check.user_code_main",
                *map(str, inherited),
                pass_fds=inherited,
                environment={"OMP_NUM_THREADS": "1"},
            )
        work, limit = "the start of the process that imports the user's code", float(START_SECONDS)
        try:
            connection.send(run)
            while connection.poll(None if math.isinf(limit) else limit):
                message = connection.recv()
                if isinstance(message, Done):
                    if isinstance(message.result, StropError):
                        raise message.result
                    return message.result
                work, limit = message, math.inf if message == _SCORING else limit_seconds
            end = f"did not return within {limit:g} s, and was ended"
        except (EOFError, ConnectionError):
            process.wait()
            reason = _user_frames(report.read())
            end = f"ended its process {describe_exit(process.returncode)}{reason}"
        finally:
            _end(process)
    return Findings(
        faults=[
            f"{work}: the code {end}. Training would end there too. Move what it does at import into a function."
        ]
    )


def _user_frames(report: str) -> str:
    """The innermost position of a crash in the report of `faulthandler`."""
    frames = [line.strip() for line in report.splitlines() if line.startswith('  File "')]
    return f", at {frames[0]}" if frames else ""


def _end(process: subprocess.Popen[bytes]) -> None:
    """Have the supervisor kill the worker and all processes that it started."""
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
