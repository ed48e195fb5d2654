"""`trinity`: workflow classes written for the `Workflow` interface of Trinity-RFT."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from strop.compat.trinity.interface import base
from strop.compat.trinity.interface.base import FormatConfig, TrinityGenerationConfig, TrinityTask
from strop.compat.trinity.interface.experience import EID, TrinityExperience, to_result
from strop.compat.trinity.interface.model import AuxiliaryModelWrapper, ModelWrapper
from strop.compat.trinity.interface.rewards import (
    DISTRIBUTION,
    TRINITY,
    Registry,
    load_reward_fn,
    provide_reward_modules,
)
from strop.compat.trinity.workflows import package_fault
from strop.config.user_code import ImportPath
from strop.errors import ConfigError
from strop.extensions import tool_class
from strop.printable import did_you_mean
from strop.provided_modules import provide_folder, provide_modules
from strop.types import Task
from strop.workflows.chat import Chat
from strop.workflows.result import WorkflowResult
from strop.workflows.threads import run_in_thread

_BASES: dict[str, Any] = {
    kind.__name__.removeprefix("Trinity"): kind
    for kind in (
        base.Workflow,
        base.MultiTurnWorkflow,
        base.BaseSimpleWorkflow,
        base.SimpleWorkflow,
        base.AsyncSimpleWorkflow,
        base.TrinityMathWorkflow,
        base.AsyncMathWorkflow,
    )
}
_BOXED: dict[str, Any] = {
    kind.__name__.removeprefix("Trinity"): kind
    for kind in (base.MathBoxedWorkflow, base.AsyncMathBoxedWorkflow)
}
_STEP_WISE: dict[str, Any] = {
    kind.__name__.removeprefix("Trinity"): kind
    for kind in (
        base.StepWiseRewardWorkflow,
        base.AsyncStepWiseRewardWorkflow,
        base.RewardPropagationWorkflow,
        base.AsyncRewardPropagationWorkflow,
    )
}
WORKFLOWS = Registry(
    "workflows",
    {
        "simple_workflow": base.SimpleWorkflow,
        "async_simple_workflow": base.AsyncSimpleWorkflow,
        "math_workflow": base.TrinityMathWorkflow,
        "async_math_workflow": base.AsyncMathWorkflow,
        "math_boxed_workflow": base.MathBoxedWorkflow,
        "async_math_boxed_workflow": base.AsyncMathBoxedWorkflow,
    },
)
"""Workflows by the names under which files register them."""


def provide_workflow_modules() -> None:
    """Let files of workflows and reward functions import their names from the package `trinity`."""
    provide_reward_modules()
    task: dict[str, Any] = {"Task": TrinityTask, "WORKFLOWS": WORKFLOWS}
    provide_modules(
        TRINITY,
        DISTRIBUTION,
        {
            "trinity.common.config": {
                "FormatConfig": FormatConfig,
                "GenerationConfig": TrinityGenerationConfig,
            },
            "trinity.common.experience": {"Experience": TrinityExperience, "EID": EID},
            "trinity.common.models.model": {"ModelWrapper": ModelWrapper},
            "trinity.common.workflows": {**task, **_BASES, **_BOXED},
            "trinity.common.workflows.workflow": {**task, **_BASES},
            "trinity.common.workflows.customized_math_workflows": {**task, **_BOXED},
            "trinity.common.workflows.step_wise_workflow": _STEP_WISE,
        },
    )


_PLUGINS = "trinity.plugins"


class TrinityWorkflow:
    """Runs a class derived from Trinity's `Workflow`, one run per rollout.

    The class is constructed with `task`, `model` and `auxiliary_models`, and `run` (`run_async` if the class sets
    `is_async`) returns experiences: their recorded tokens are trained on, and their rewards are the rollout's. A
    class that sets `can_reset` is constructed once and reset for the next task, as often as rollouts run at once.
    """

    def __init__(
        self,
        workflow: str,
        args: Mapping[str, Any] | None = None,
        reward_fn: str | None = None,
        reward_fn_args: Mapping[str, Any] | None = None,
        format: Mapping[str, Any] | None = None,
        plugins: Sequence[str] = (),
        is_eval: bool = False,
    ) -> None:
        """Args:
        workflow: a name that a plugin registers in `WORKFLOWS`, a dotted path, or `file.py:Class`.
        args: `workflow_args` of the task.
        reward_fn: reward function of the task: Trinity's name of it, a registered name, a dotted path, or
            `file.py:Class`; for workflows that call one.
        reward_fn_args: arguments of its class.
        format: columns and texts that the workflow reads from the task: `prompt_key`, `response_key`,
            `system_prompt`, `reply_prefix` and Trinity's other keys of this section.
        plugins: folders whose Python files are imported first, as modules of `trinity.plugins`.
        is_eval: value of the task's `is_eval`.
        """
        provide_workflow_modules()
        for folder in plugins:
            _import_plugins(Path(folder))
        self._class = _load(workflow)
        self._args = dict(args or {})
        self._reward_fn = None if reward_fn is None else load_reward_fn(reward_fn)
        self._reward_fn_args = dict(reward_fn_args or {})
        self._format = _format(format or {})
        self._is_eval = is_eval
        self._idle: list[_Instance] = []
        self._clients: dict[str, Any] = {}

    async def run(self, task: Task, chat: Chat) -> WorkflowResult:
        """One run of the workflow."""
        loop = asyncio.get_running_loop()
        trinity_task = self._task(task, chat)
        if self._class.is_async:
            with self._instance(trinity_task, chat, loop) as instance:
                experiences = await instance.workflow.run_async()
        else:
            experiences = await run_in_thread(self._run, trinity_task, chat, loop)
        return to_result(experiences, chat.turns)

    def _run(self, task: TrinityTask, chat: Chat, loop: asyncio.AbstractEventLoop) -> Any:
        with self._instance(task, chat, loop) as instance:
            return instance.workflow.run()

    @contextmanager
    def _instance(
        self, task: TrinityTask, chat: Chat, loop: asyncio.AbstractEventLoop
    ) -> Iterator[_Instance]:
        """An object of the class for one run. One that failed is not used again."""
        instance = self._idle.pop() if self._idle else None
        model = ModelWrapper(chat.policy_name, self._clients) if instance is None else instance.model
        model.bind(chat, loop)
        try:
            if instance is None:
                auxiliary = [AuxiliaryModelWrapper(name, model) for name in chat.auxiliary_names]
                workflow = self._class(task=task, model=model, auxiliary_models=auxiliary or None)
                instance = _Instance(workflow, model)
            else:
                instance.workflow.reset(task)
            if self._class.can_repeat:
                instance.workflow.set_repeat_times(1, 0)
            yield instance
        finally:
            model.close()
        if self._class.can_reset:
            self._idle.append(instance)

    def _task(self, task: Task, chat: Chat) -> TrinityTask:
        form = FormatConfig(**self._format)
        prompt = form.messages_key if form.prompt_type == "messages" else form.prompt_key
        row = {**task.extra, prompt: task.prompt_value}
        if form.response_key not in row and task.answer is not None:
            row[form.response_key] = task.answer
        sampling = chat.sampling
        return TrinityTask(
            workflow=self._class,
            format_args=form,
            rollout_args=TrinityGenerationConfig(
                temperature=sampling.temperature, top_p=sampling.top_p, top_k=sampling.top_k or -1
            ),
            workflow_args=dict(self._args),
            reward_fn=self._reward_fn,
            reward_fn_args=dict(self._reward_fn_args),
            is_eval=self._is_eval,
            raw_task=row,
            task_id=task.id,
        )


@dataclass(frozen=True, slots=True)
class _Instance:
    """An object of the user's class, and the model that it was constructed with."""

    workflow: Any
    model: ModelWrapper


def _load(name: str) -> type[Any]:
    found = WORKFLOWS.get(name)
    if found is None:
        if fault := missing_workflow({"workflow": name}):
            raise ConfigError(fault)
        what = f"rollout.workflow trinity: the workflow {name!r}"
        found = ImportPath(name, what, "class", WORKFLOWS.modules, ConfigError).load()
    is_workflow = tool_class(found, lambda extension: extension.workflow_classes) == "trinity"
    if not is_workflow and found not in WORKFLOWS.modules.values():
        raise ConfigError(
            f"rollout.workflow trinity: {name!r} is not a class derived from "
            "trinity.common.workflows.workflow.Workflow. Name a workflow written for Strop as file.py:name."
        )
    return found


def missing_workflow(args: Mapping[str, Any]) -> str | None:
    """Why the workflow of these arguments cannot be found; None if it may be. Imports no file of a user."""
    name = str(args.get("workflow"))
    fault = package_fault(name)
    if fault is not None or "." in name or ":" in name or name in WORKFLOWS.modules:
        return fault
    files = [file for folder in args.get("plugins", ()) for file in sorted(Path(folder).glob("*.py"))]
    if any(name in file.read_text(encoding="utf-8", errors="replace") for file in files):
        return None
    hint = did_you_mean(name, WORKFLOWS.modules) or "."
    return (
        f"rollout.workflow trinity: no file registers a workflow {name!r}{hint} Write "
        "`plugins`, the folder of the file that registers it (--plugin-dir), or name the class as file.py:Class."
    )


def _import_plugins(folder: Path) -> None:
    """Import every file of a folder, so that its classes are registered. Raises `ConfigError`."""
    if not folder.is_dir():
        raise ConfigError(
            f"rollout.workflow trinity: there is no folder {folder}, which `plugins` (--plugin-dir) names."
        )
    provide_folder(_PLUGINS, folder.resolve())
    for file in sorted(folder.glob("*.py")):
        if not file.name.startswith("__"):
            what = f"rollout.workflow trinity: the plugin {file}"
            ImportPath(file.stem, what, "class", (), ConfigError).import_module(f"{_PLUGINS}.{file.stem}")


def _format(section: Mapping[str, Any]) -> dict[str, Any]:
    known = [each.name for each in fields(FormatConfig)]
    for name in section:
        if name not in known:
            raise ConfigError(
                f"rollout.workflow trinity: format has no key {name!r}; it has {', '.join(known)}."
            )
    return {name: value for name, value in section.items() if value is not None}
