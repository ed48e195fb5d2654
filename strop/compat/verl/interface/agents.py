"""`verl_agents`: verl's agent loops; a task names the one that answers it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from strop.compat.verl.interface.agent_loop import DictConfigWrap
from strop.compat.verl.interface.imports import load_class
from strop.config.load.yaml_file import read_bounded
from strop.config.paths import expand_user
from strop.errors import ConfigError
from strop.types import Task, Turn
from strop.workflows.builtin.single_turn import SingleTurnWorkflow
from strop.workflows.builtin.tools import ToolCallingWorkflow
from strop.workflows.chat import Chat
from strop.workflows.result import InvalidWorkflowResult, WorkflowResult

_SAMPLING = frozenset({"temperature", "top_p", "top_k", "repetition_penalty", "logprobs"})
"""Sampling parameters of a call that the run file determines."""


class Agent(Protocol):
    """Answers a task."""

    async def run(self, task: Task, chat: Chat) -> Any:
        """One rollout; returns what a workflow may return."""


def load_agent_loops(path: str, config: Mapping[str, Any]) -> dict[str, Agent]:
    """The agent loops of a configuration file by name; `config` is verl's configuration. Raises ConfigError."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    file = expand_user(Path(path))
    try:
        entries = OmegaConf.to_container(OmegaConf.create(read_bounded(file, regular=True)), resolve=True)
    except (OmegaConfBaseException, ValueError) as error:
        raise ConfigError(f"{file}: {error}") from None
    if not isinstance(entries, list):
        raise ConfigError(f"{file}: the file must be a list of agent loops, each with name and _target_.")
    wrapped = DictConfigWrap(OmegaConf.create(dict(config)))
    loops: dict[str, Agent] = {}
    for entry in entries:
        if not isinstance(entry, dict) or not {"name", "_target_"} <= entry.keys():
            raise ConfigError(f"{file}: an agent loop needs name and _target_; got {entry!r:.80}.")
        options = {key: value for key, value in entry.items() if key not in ("name", "_target_")}
        make = load_class(entry["_target_"], f"{file}: the agent loop")
        loops[entry["name"]] = AgentLoop(make, options, wrapped)
    return loops


@dataclass(frozen=True, slots=True)
class AgentLoop:
    """A class of agent loops: each rollout constructs an object and calls its `run`."""

    make: Callable[..., Any]
    options: Mapping[str, Any]
    config: DictConfigWrap

    async def run(self, task: Task, chat: Chat) -> WorkflowResult:
        """One rollout. Raises InvalidWorkflowResult for a result that cannot be trained on."""
        loop = self.make(
            trainer_config=self.config,
            server_manager=_Server(chat),
            tokenizer=chat.tokenizer,
            processor=None,
            **self.options,
        )
        columns = {**task.extra, "raw_prompt": [dict(message) for message in task.messages]}
        output = await loop.run({}, **columns)
        if output.reward_score is not None:
            raise InvalidWorkflowResult(
                "the agent loop returned a reward_score; return it in extra_fields, and score it by a reward "
                "function, which gets extra_fields in extra_info"
            )
        return WorkflowResult(
            text=chat.decode_response(
                np.array(output.response_ids, np.int32), np.array(output.response_mask, bool)
            ),
            turns=trained_turns(output, chat.turns),
            info={**output.extra_fields, "num_turns": output.num_turns},
        )


class _Server:
    """verl's server manager: samples the continuation of a prompt of tokens."""

    def __init__(self, chat: Chat) -> None:
        self._chat = chat

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: Mapping[str, Any], **kwargs: Any
    ) -> Any:
        """Sample a reply. `max_tokens` and `stop` may be set; the run file determines all other parameters."""
        media = [name for name, value in kwargs.items() if name.endswith("_data") and value]
        if media:
            raise InvalidWorkflowResult(f"the agent loop passed {media[0]}; loops of verl get text only")
        unknown = sorted(sampling_params.keys() - _SAMPLING - {"max_tokens", "max_new_tokens", "stop"})
        if unknown:
            raise InvalidWorkflowResult(f"the agent loop set the sampling parameter {unknown[0]!r}")
        limit = sampling_params.get("max_tokens", sampling_params.get("max_new_tokens"))
        stop = sampling_params.get("stop") or ()
        turn = await self._chat.sample(
            np.array(prompt_ids, np.int32),
            max_tokens=limit,
            stop=(stop,) if isinstance(stop, str) else tuple(stop),
        )
        return TokenOutput(turn.completion_ids.tolist(), turn.sampler_logprobs.tolist(), turn.finish_reason)


@dataclass(frozen=True, slots=True)
class TokenOutput:
    """Result of one call of the model, with the names that verl has."""

    token_ids: list[int]
    log_probs: list[float]
    stop_reason: str
    routed_experts: Any = None
    num_preempted: int | None = None

    @property
    def extra_fields(self) -> dict[str, Any]:
        """Nothing further."""
        return {}


def trained_turns(output: Any, turns: tuple[Turn, ...]) -> list[Turn]:
    """The recorded turns whose tokens the output's mask marks.

    Raises InvalidWorkflowResult if the marked tokens are not exactly complete turns: then some of them were not
    sampled by the model at their place, or only a part of a reply would be trained on.
    """
    sequence = np.array([*output.prompt_ids, *output.response_ids], np.int32)
    mask = np.concatenate([np.zeros(len(output.prompt_ids), bool), np.array(output.response_mask, bool)])
    found, covered = [], np.zeros(len(sequence), bool)
    for turn in turns:
        start, end = len(turn.prompt_ids), len(turn.prompt_ids) + len(turn.completion_ids)
        is_inside = end <= len(sequence) and np.array_equal(sequence[:start], turn.prompt_ids)
        if is_inside and np.array_equal(sequence[start:end], turn.completion_ids) and mask[start:end].any():
            found.append(turn)
            covered[start:end] = True
    if not found or not np.array_equal(covered, mask):
        raise InvalidWorkflowResult(
            "the tokens that the agent loop's response_mask marks are not complete replies of the model, as "
            "server_manager.generate returned them"
        )
    return found


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
