"""Registry of the built-in workflows, and loading of a workflow by name."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from strop.config.schema.rollout import WorkflowConfig
from strop.config.user_code import ImportPath, construct
from strop.errors import ConfigError
from strop.extensions import all_extensions, extension_of, provide_tool_modules, tool_class
from strop.workflows.threads import is_async

BUILTIN_WORKFLOWS = {
    "single_turn": "strop.workflows.builtin.single_turn.SingleTurnWorkflow",
    "math": "strop.workflows.builtin.single_turn.MathWorkflow",
    "environment": "strop.workflows.builtin.environment.EnvironmentWorkflow",
    "tools": "strop.workflows.builtin.tools.ToolCallingWorkflow",
    "agent": "strop.workflows.builtin.agent.AgentWorkflow",
    "openenv": "strop.workflows.builtin.openenv.OpenEnvWorkflow",
    "verifiers": "strop.workflows.builtin.verifiers.VerifiersWorkflow",
}
"""Import path of each built-in workflow, by its name in a run file."""


@dataclass(frozen=True, slots=True)
class BoundWorkflow:
    """A workflow with its arguments bound."""

    name: str
    """Name of the workflow in the run file."""
    function: Callable[..., Any]
    """Function of a task and a chat."""
    multi_turn: bool = True
    """Whether a rollout may call the model more than once; a class says it by an attribute of that name."""

    @property
    def is_async(self) -> bool:
        """Whether it runs in the event loop; otherwise each rollout has a thread."""
        return is_async(self.function)


def load_workflow(section: WorkflowConfig) -> BoundWorkflow:
    """Load a function `(task, chat, **args)`, or the method `run(task, chat)` of a class constructed with `args`.

    Raises `ConfigError` if it does not exist, cannot be constructed, or does not accept its arguments.
    """
    found = _find(section.name)
    if adapter := tool_class(found, lambda extension: extension.workflow_classes):
        section = WorkflowConfig(name=adapter, args={"workflow": section.name, "args": section.args})
        found = _find(adapter)
    if not inspect.isclass(found):
        _check(section, found, "task", "chat", **section.args)
        return BoundWorkflow(section.name, functools.partial(found, **section.args))
    run = getattr(_construct(section, found), "run", None)
    if not callable(run):
        raise ConfigError(
            f"rollout.workflow {section.name!r}: the class {found.__name__} has no method `run`. Write "
            "`async def run(self, task, chat)` or `def run(self, task, chat)`."
        )
    _check(section, run, "task", "chat")
    return BoundWorkflow(section.name, run, getattr(found, "multi_turn", True))


def _find(name: str) -> Callable[..., Any]:
    if name in BUILTIN_WORKFLOWS:
        path, known = BUILTIN_WORKFLOWS[name], list(BUILTIN_WORKFLOWS)
    else:
        tool = extension_of(name)
        provide_tool_modules()
        path, known = tool.workflows.get(name, name) if tool else name, builtin_workflows()
    return ImportPath(path, f"rollout.workflow {name!r}", "workflow", known, ConfigError).load()


def builtin_workflows() -> list[str]:
    """Names of the built-in workflows, and of those of other tools."""
    return [*BUILTIN_WORKFLOWS, *(name for each in all_extensions() for name in each.workflows)]


def _construct(section: WorkflowConfig, kind: type[Any]) -> Any:
    _check(section, kind, **section.args)
    return construct(kind, f"rollout.workflow {section.name!r}", ConfigError, **section.args)


def _check(section: WorkflowConfig, function: Callable[..., Any], /, *given: str, **args: Any) -> None:
    """Raises `ConfigError` if the function cannot be called with these arguments."""
    signature = inspect.signature(function)
    try:
        signature.bind(*given, **args)
    except TypeError as error:
        options = [name for name in signature.parameters if name not in ("task", "chat")]
        raise ConfigError(
            f"rollout.workflow {section.name!r}: {error}. A function, or the method `run` of a class, is called "
            "with task and chat; function or class get `args` from the run file. Supported args: "
            f"{', '.join(options) or 'none'}."
        ) from error
