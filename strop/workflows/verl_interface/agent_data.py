"""`AgentData` of verl: the state of a rollout, which a tool's `execute` may receive as `agent_data`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class AgentData:
    """State of one rollout, for tools that read its history or keep values for the reward function."""

    request_id: str
    """Name of the rollout."""
    messages: list[dict[str, Any]] = field(default_factory=list)
    """Messages so far, including the prompt."""
    tools_kwargs: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Options of the task for each tool: `create_kwargs`, `execute_kwargs`, `calc_reward_kwargs`,
    `release_kwargs`."""
    tool_rewards: list[float] = field(default_factory=list)
    """Rewards of the calls so far."""
    turn_scores: list[float] = field(default_factory=list)
    """Scores of the interaction's turns so far."""
    assistant_turns: int = 0
    user_turns: int = 0
    """Number of messages, or sets of tool messages, that the model got after its replies."""
    extra_fields: dict[str, Any] = field(default_factory=dict)
    """Values of tools, which the reward function gets in `extra_info`."""
    metrics: dict[str, Any] = field(default_factory=dict)
    """Values of tools; not recorded."""
