"""`workflow`: the procedure that turns a task into a rollout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from strop.config.schema.base import Section


class WorkflowConfig(Section):
    """Procedure that turns a task into a rollout. A name alone is short for `{name: ...}`."""

    name: str = "single_turn"
    """Built-in name (single_turn, math, environment, tools, agent, verl_agents, trinity, verifiers), a dotted path,
    or `file.py:name`."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the workflow's class, or of its function after `task` and `chat`."""

    @property
    def tool_args(self) -> Mapping[str, Any] | None:
        """Arguments of the workflow `tools`, to which `verl_agents` passes its argument `tools`; None for others."""
        if self.name == "verl_agents":
            return self.args.get("tools") or {}
        return self.args if self.name == "tools" else None


def _from_name(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


WorkflowConfigOrName = Annotated[WorkflowConfig, BeforeValidator(_from_name)]
"""A `WorkflowConfig`, or its name: `workflow: math` is `workflow: {name: math}`."""
