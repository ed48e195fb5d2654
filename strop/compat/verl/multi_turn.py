"""Ledger rows of verl's tools, interactions and agent loops: `rollout.multi_turn` and `rollout.agent`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from strop.compat.ledger.key_mapping import (
    INTEGER,
    STRING,
    UNSET,
    ForeignValues,
    KeyMapping,
    empty,
    mapped,
    no_effect,
    not_on_page,
    nullable,
    one_of,
    only,
    refused,
    written_by,
)
from strop.compat.verl import switches
from strop.config.schema import Run

_TURNS = "actor_rollout_ref.rollout.multi_turn"
_AGENT = "actor_rollout_ref.rollout.agent"
_FIELDS = ("rollout.workflow.name", "rollout.workflow.args")
_FORMATS = {"hermes": "hermes", "llama3_json": "json", "qwen3_coder": "qwen3_coder", "gpt-oss": "gpt_oss"}
_BUILT_IN_LOOPS = ("single_turn_agent", "tool_agent")
_RECIPE_FORMAT = "spo"
"""A format that only the agent loop of verl's recipe SPO reads; the recipe's program loads the loop itself."""
_RECIPE_LOOP = ("spo_tool_agent", "recipe/spo/config/spo_agent.yaml")
"""Name of that agent loop, and the file that names its class."""
_SAME_TOKENS = "each turn continues the tokens of the one before; nothing is tokenized again"
_ACTIVE_WHERE_SET = ("actor_rollout_ref.rollout.mode", "actor_rollout_ref.rollout.name", "data.image_key")
"""Keys that mean something else where they are set to their default than where they are not set."""
_DEFAULT_CALLS = 1
_DEFAULT_OUTPUT = 256


def write_workflow(run: Run) -> Mapping[str, Any]:
    """Write the tools, interactions and agent loops of the workflows `tools` and `verl_agents`."""
    workflow = run.rollout.workflow
    if workflow.name not in ("tools", "verl_agents"):
        return {}
    is_agent = workflow.name == "verl_agents"
    args = workflow.args.get("tools", {}) if is_agent else workflow.args
    names = {form: name for name, form in _FORMATS.items()}
    values: dict[str, Any] = {
        "actor_rollout_ref.rollout.mode": "async" if is_agent else "sync",
        f"{_TURNS}.enable": True,
        f"{_TURNS}.tool_config_path": args.get("tool_config"),
        f"{_TURNS}.interaction_config_path": args.get("interaction_config"),
        f"{_TURNS}.max_user_turns": args.get("max_user_turns"),
        f"{_TURNS}.max_assistant_turns": args.get("max_turns", 8),
    }
    if not is_agent:
        return values
    side = args.get("truncated_side", "right")
    return {
        **values,
        f"{_TURNS}.function_tool_path": args.get("function_file"),
        f"{_TURNS}.max_parallel_calls": args.get("max_calls"),
        f"{_TURNS}.max_tool_response_length": args.get("max_output", 4000),
        f"{_TURNS}.tool_response_truncate_side": side if "function_file" in args else _other_side(side),
        f"{_TURNS}.format": names.get(args.get("form", "hermes"), "hermes"),
        f"{_AGENT}.default_agent_loop": workflow.args.get("default_agent", "tool_agent"),
        f"{_AGENT}.agent_loop_config_path": workflow.args.get("agent_loops"),
        **_agent_configuration(workflow.args.get("config", {})),
    }


def _agent_configuration(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration that the user's agent loops get. It is written as it is, because a loop may read any
    key, also one that the run itself does not use."""
    return {key: value for key, value in _keys_of(config).items() if key not in _ACTIVE_WHERE_SET}


def _keys_of(config: Mapping[str, Any], section: str = "") -> dict[str, Any]:
    """`{"a": {"b": 1}}` -> `{"a.b": 1}`."""
    values: dict[str, Any] = {}
    for name, value in config.items():
        key = f"{section}{name}"
        values |= _keys_of(value, f"{key}.") if isinstance(value, Mapping) and value else {key: value}
    return values


@written_by(
    write_workflow,
    off={
        **{
            f"{_TURNS}.{name}": UNSET
            for name in ("enable", "tool_config_path", "function_tool_path", "format")
        },
        **{f"{_AGENT}.{name}": UNSET for name in ("default_agent_loop", "agent_loop_config_path")},
    },
)
def workflow(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the workflow: without an agent loop (`rollout.mode: sync`) verl's tools keep an instance for the
    rollout, and every call is executed; in an agent loop the task's column `agent_name` chooses the loop."""
    agents = switches.uses_agent_loops(foreign)
    if not agents:
        if not foreign[f"{_TURNS}.enable"]:
            return {}
        form = {"malformed": "ignore", "lifetime": "rollout", "max_output": None}
        return {"rollout.workflow": {"name": "tools", "args": {**_tools(foreign), **form}}}
    loop, loops = _agent_loop(foreign)
    if loop not in _BUILT_IN_LOOPS and loops is None:
        raise foreign.error_for(
            f"{_AGENT}.default_agent_loop",
            f"{_AGENT}.default_agent_loop is {loop}, which is an agent loop of your own; also write "
            f"{_AGENT}.agent_loop_config_path, the YAML file that names its class.",
        )
    tools = (foreign[f"{_TURNS}.{name}"] for name in ("tool_config_path", "function_tool_path", "enable"))
    if loop == "single_turn_agent" and loops is None and not any(tools):
        return {}
    limits = {
        "max_calls": foreign[f"{_TURNS}.max_parallel_calls"],
        **({"form": _form(foreign)} if loop in _BUILT_IN_LOOPS else {}),
        "malformed": "ignore",
        "max_output": foreign[f"{_TURNS}.max_tool_response_length"],
        "truncated_side": _removed_side(foreign),
        "mark_truncation": True,
        "lifetime": "call",
    }
    args: dict[str, Any] = {"default_agent": loop, "tools": {**_tools(foreign), **limits}}
    if loops is not None:
        model, rollout = foreign["actor_rollout_ref.model"], foreign["actor_rollout_ref.rollout"]
        sections = {"model": model, "rollout": {**rollout, "mode": "async"}}
        args |= {"agent_loops": loops, "config": {"data": foreign["data"], "actor_rollout_ref": sections}}
    return {"rollout.workflow": {"name": "verl_agents", "args": args}}


def _agent_loop(foreign: ForeignValues) -> tuple[str, str | None]:
    """The loop of rows without `agent_name`, and the file of the user's own loops."""
    loops = foreign[f"{_AGENT}.agent_loop_config_path"]
    if loops is None and foreign[f"{_TURNS}.format"] == _RECIPE_FORMAT:
        return _RECIPE_LOOP
    return foreign[f"{_AGENT}.default_agent_loop"], loops


def _tools(foreign: ForeignValues) -> dict[str, Any]:
    """Arguments that both kinds of tool calling have; keys that are null are left out."""
    turns = foreign[f"{_TURNS}.max_assistant_turns"] or foreign[f"{_TURNS}.max_turns"]
    files = {
        "tool_config": foreign[f"{_TURNS}.tool_config_path"],
        "function_file": foreign[f"{_TURNS}.function_tool_path"],
        "interaction_config": foreign[f"{_TURNS}.interaction_config_path"],
        "max_user_turns": foreign[f"{_TURNS}.max_user_turns"] or None,
    }
    return {
        "tools": [],
        **{name: value for name, value in files.items() if value is not None},
        "max_turns": turns or None,
        "max_new_tokens": foreign["data.max_response_length"],
        "scored": "response",
    }


def _form(foreign: ForeignValues) -> str:
    """The format of tool calls. Raises ConfigError for one that Strop cannot parse."""
    name = foreign[f"{_TURNS}.format"]
    if name not in _FORMATS:
        raise foreign.error_for(
            f"{_TURNS}.format",
            f"{_TURNS}.format is {name}, a format of tool calls that Strop cannot parse; it has "
            f"{', '.join(_FORMATS)}.",
        )
    return _FORMATS[name]


def _removed_side(foreign: ForeignValues) -> str:
    """The removed part of a long output; up to 0.7, verl's `left` kept the left part, and `right` the right."""
    side = str(foreign[f"{_TURNS}.tool_response_truncate_side"])
    return side if switches.has_keys_since(foreign, "0.8") else _other_side(side)


def _other_side(side: str) -> str:
    return {"left": "right", "right": "left"}.get(side, side)


def _without_tools(foreign: ForeignValues) -> str | None:
    """The section has no effect without tools; agent loops use it whatever `enable` is."""
    return None if switches.uses_agent_loops(foreign) else switches.multi_turn(foreign)


def _without_agent_loop(foreign: ForeignValues) -> str | None:
    return None if switches.uses_agent_loops(foreign) else "rollout.mode is sync, which has no agent loops"


def _agent_key(key: str, default: Any, value_type: Any, note: str) -> KeyMapping:
    return mapped(
        f"{_TURNS}.{key}",
        default,
        *_FIELDS,
        read=workflow,
        value_type=value_type,
        inactive=_without_agent_loop,
        note=note,
    )


def _key(key: str, value_type: Any, note: str) -> KeyMapping:
    return mapped(
        f"{_TURNS}.{key}",
        None,
        *_FIELDS,
        read=workflow,
        value_type=nullable(value_type),
        inactive=_without_tools,
        note=note,
    )


_row = partial(mapped, read=workflow)
ROWS = (
    *not_on_page(
        _row(
            f"{_TURNS}.enable",
            False,
            *_FIELDS,
            note="tool calling, by the workflow tools; agent loops call tools whatever this is",
        ),
        _key("tool_config_path", STRING, "YAML file of tool classes; those of verl itself have counterparts"),
        _key("max_turns", INTEGER, "maximum number of replies; null for no limit"),
        refused(
            f"{_TURNS}.completion_callback",
            None,
            "the callback works on verl's servers and batches; write the conversation as a workflow "
            "(`rollout.workflow: file.py:name`) in a run file",
            inactive=_without_tools,
        ),
        no_effect(f"{_TURNS}.use_inference_chat_template", False, _SAME_TOKENS),
        no_effect(f"{_TURNS}.enable_tokenization_sanity_check", True, _SAME_TOKENS),
        _agent_key(
            "format",
            "hermes",
            STRING,
            "format of tool calls; that of the chat template without an agent loop; spo is the agent loop of "
            "verl's recipe, recipe/spo",
        ),
        _key("max_assistant_turns", INTEGER, "maximum number of replies; null for no limit"),
        _key("max_user_turns", INTEGER, "maximum number of answers to replies; null for no limit"),
        _key("interaction_config_path", STRING, "YAML file of simulated users; a row names one of them"),
        _agent_key(
            "max_parallel_calls", _DEFAULT_CALLS, INTEGER, "further calls of a reply are not executed"
        ),
        _agent_key("max_tool_response_length", _DEFAULT_OUTPUT, INTEGER, "characters of a tool's output"),
        _agent_key(
            "tool_response_truncate_side",
            "middle",
            one_of("left", "middle", "right"),
            "removed part since 0.8; up to 0.7, left keeps the left part and right the right one",
        ),
        no_effect(f"{_TURNS}.tokenization_sanity_check_mode", "strict", _SAME_TOKENS),
        no_effect(f"{_TURNS}.num_repeat_rollouts", None, "only agent loops of recipes read it"),
        no_effect(f"{_AGENT}.num_workers", 8, "rollouts run concurrently in one process"),
        _row(
            f"{_AGENT}.default_agent_loop",
            "single_turn_agent",
            *_FIELDS,
            inactive=_without_agent_loop,
            note="loop of rows without a column agent_name: single_turn_agent, tool_agent, or one of "
            "agent_loop_config_path",
        ),
        _row(
            f"{_AGENT}.agent_loop_config_path",
            None,
            *_FIELDS,
            value_type=nullable(STRING),
            inactive=_without_agent_loop,
            note="YAML file of agent loop classes",
        ),
        refused(
            f"{_AGENT}.*",
            UNSET,
            "Strop runs agent loops itself, in the process that samples; leave it null",
            supported=empty,
        ),
        _key("function_tool_path", STRING, "Python file with functions that @function_tool marks"),
        refused(
            f"{_TURNS}.*",
            UNSET,
            "Strop does not know this key of verl's; remove it",
            supported=only(None, {}),
        ),
    ),
)
