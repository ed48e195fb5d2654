"""`workflow`: how a task becomes a rollout."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from strop.config.schema.base import Section


class Workflow(Section):
    """How a task becomes a rollout. A name alone is short for `{name: ...}`."""

    name: str = "single_turn"
    """A built-in (single_turn, math, environment, tools, agent), a dotted path, or `file.py:name`."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the workflow: of its class, or of its function after task and chat."""


def _from_name(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


WorkflowOrName = Annotated[Workflow, BeforeValidator(_from_name)]
"""Lets `workflow: math` stand for `workflow: {name: math}`."""
