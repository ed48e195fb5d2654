"""Workflows by name: the built-in ones, and a user's own."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from strop.config.imports import Named
from strop.config.schema.workflow import Workflow as Section
from strop.errors import ConfigError
from strop.workflows.agent import Agent
from strop.workflows.environment import Environment
from strop.workflows.math import MathProblem
from strop.workflows.single_turn import SingleTurn
from strop.workflows.threads import is_async
from strop.workflows.tools import ToolCalling

BUILT_IN: dict[str, Callable[..., Any]] = {
    "single_turn": SingleTurn,
    "math": MathProblem,
    "environment": Environment,
    "tools": ToolCalling,
    "agent": Agent,
}


@dataclass(frozen=True, slots=True)
class Bound:
    """A workflow that is ready to run."""

    name: str
    """As the run file writes it."""
    function: Callable[..., Any]
    """Takes a task and a chat."""

    @property
    def is_async(self) -> bool:
        """Whether it runs in the event loop; else each rollout has a thread."""
        return is_async(self.function)


def load_workflow(section: Section) -> Bound:
    """A function `(task, chat, **args)`, or the method `run(task, chat)` of a class made with `args`.

    Raises `ConfigError` where it is not there, cannot be made, or does not take what it is given.
    """
    found = BUILT_IN.get(section.name) or _named(section.name).load()
    if not inspect.isclass(found):
        _check(section, found, "task", "chat", **section.args)
        return Bound(section.name, functools.partial(found, **section.args))
    run = getattr(_made(section, found), "run", None)
    if not callable(run):
        raise ConfigError(
            f"rollout.workflow {section.name!r}: the class {found.__name__} has no method `run`. Write "
            "`async def run(self, task, chat)`, or the same without `async`."
        )
    _check(section, run, "task", "chat")
    return Bound(section.name, run)


def _made(section: Section, kind: type[Any]) -> Any:
    _check(section, kind, **section.args)
    try:
        return kind(**section.args)
    except ConfigError:
        raise
    except Exception as error:
        raised = f"{type(error).__name__}: {error}"
        raise ConfigError(
            f"rollout.workflow {section.name!r}: {kind.__name__}(...) raised {raised}."
        ) from error


def _check(section: Section, function: Callable[..., Any], /, *given: str, **args: Any) -> None:
    """That it can be called so."""
    signature = inspect.signature(function)
    try:
        signature.bind(*given, **args)
    except TypeError as error:
        options = [name for name in signature.parameters if name not in ("task", "chat")]
        raise ConfigError(
            f"rollout.workflow {section.name!r}: {error}. It is called with task and chat (a class, its "
            f"method `run`) and with `args` from the run file; these can be {', '.join(options) or 'none'}."
        ) from error


def _named(name: str) -> Named:
    return Named(name, f"rollout.workflow {name!r}", "workflow", BUILT_IN, ConfigError)
