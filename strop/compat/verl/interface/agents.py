"""`verl_agents`: verl's agent loops; a task names the one that answers it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.compat.verl.interface.agent_loop_files import Agent, load_agent_loops
from strop.errors import ConfigError
from strop.types import Task
from strop.workflows.builtin.single_turn import SingleTurnWorkflow
from strop.workflows.builtin.tools import ToolCallingWorkflow
from strop.workflows.chat import Chat
from strop.workflows.result import InvalidWorkflowResult


class VerlAgentsWorkflow:
    """Runs the agent loop that the task's column `agent_name` names, or the default.

    `single_turn_agent` is the workflow `single_turn`, `tool_agent` is the workflow `tools`; further loops are
    classes of the user with verl's interface.
    """

    def __init__(
        self,
        default_agent: str = "single_turn_agent",
        tools: Mapping[str, Any] | None = None,
        agent_loops: str | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        """Args:
        default_agent: agent loop of tasks without a column `agent_name`.
        tools: arguments of the workflow `tools`.
        agent_loops: YAML file of agent loop classes, in verl's format.
        config: verl's configuration, which agent loop classes get.
        """
        self._agents: dict[str, Agent] = {
            "single_turn_agent": SingleTurnWorkflow(),
            "tool_agent": ToolCallingWorkflow(**(tools or {})),
        }
        if agent_loops is not None:
            self._agents |= load_agent_loops(agent_loops, config or {})
        if default_agent not in self._agents:
            raise ConfigError(
                f"rollout.workflow verl_agents: default_agent is {default_agent!r}; the agent loops are "
                f"{', '.join(self._agents)}."
            )
        self._default = default_agent

    async def run(self, task: Task, chat: Chat) -> Any:
        """Run the task's agent loop."""
        name = task.extra.get("agent_name") or self._default
        if name not in self._agents:
            raise InvalidWorkflowResult(
                f"the task's agent_name is {name!r}; the agent loops are {', '.join(self._agents)}"
            )
        return await self._agents[name].run(task, chat)
