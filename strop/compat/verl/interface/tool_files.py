"""Configuration files of tools and of interactions, in verl's format: classes by name with their options.

tools:
  - class_name: package.module.Class     # or file.py:Class
    config: {type: native, ...}          # passed to the class
    tool_schema: {type: function, function: {name: ..., description: ..., parameters: {...}}}
  - class_name: verl.tools.mcp_base_tool.MCPBaseTool
    config: {type: mcp}
    mcp: {mcp_servers_config_path: servers.json}
interaction:
  - class_name: package.module.Class
    name: teacher                        # default: the class's name without "Interaction", in lower case
    config: {...}
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from strop.compat.verl.interface.imports import is_verl_installed, load_class, load_file
from strop.compat.verl.interface.interactions import Gsm8kInteraction
from strop.compat.verl.interface.tools import (
    FunctionToolMark,
    Gsm8kTool,
    MCPBaseTool,
    MCPSearchTool,
    OpenAIFunctionToolSchema,
    SandboxTool,
    function_tool_mark,
)
from strop.config.load.config_tree import KeyPath, resolve_interpolations
from strop.config.load.schema_faults import first_fault
from strop.config.load.yaml_file import read_yaml
from strop.config.paths import expand_user
from strop.config.user_code import construct
from strop.errors import ConfigError
from strop.printable import did_you_mean
from strop.workflows.mcp.client import McpClient, McpTool, list_tools, require_mcp
from strop.workflows.mcp.servers import McpServer, read_servers
from strop.workflows.result import InvalidWorkflowResult
from strop.workflows.threads import is_async
from strop.workflows.tool import (
    AgentData,
    FunctionTool,
    Lifetime,
    Tool,
    ToolInstance,
    ToolResult,
    function_schema,
)

_METHODS = ("create", "execute", "calc_reward", "release")


class ClassTool:
    """A tool object with verl's interface, which serves all rollouts."""

    def __init__(self, tool: Any, lifetime: Lifetime) -> None:
        """Raises ConfigError for an object that does not have the interface."""
        what = type(tool).__name__
        missing = [name for name in _METHODS if not (hasattr(tool, name) and is_async(getattr(tool, name)))]
        if missing:
            raise ConfigError(
                f"rollout.workflow tools: the tool class {what} has no `async def {missing[0]}`. A tool class has "
                f"the methods {', '.join(_METHODS)} of verl's BaseTool."
            )
        schema = getattr(tool, "tool_schema", None)
        if schema is None:
            raise ConfigError(
                f"rollout.workflow tools: the tool class {what} has no schema; write tool_schema in the "
                "configuration file."
            )
        self.schema: Mapping[str, Any] = schema.model_dump(exclude_unset=True, exclude_none=True)
        self.name: str = schema.function.name
        self._tool = tool
        self._lifetime = lifetime

    def start(self, data: AgentData) -> ToolInstance:
        """An instance for one rollout, or one that creates an instance for each call."""
        options = data.tools_kwargs.get(self.name) or {}
        if self._lifetime == "rollout":
            return _RolloutInstance(self._tool, f"{data.request_id}/{self.name}", options)
        return _CallInstance(self._tool, options, data)


@dataclass(slots=True)
class _RolloutInstance:
    """One instance for all calls of a rollout."""

    tool: Any
    id: str
    options: Mapping[str, Any]
    created: bool = False

    async def open(self) -> None:
        self.id = _instance_id(await self.tool.create(self.id, **self._kwargs("create")))
        self.created = True

    async def call(self, arguments: Mapping[str, Any]) -> ToolResult:
        return verl_result(await self.tool.execute(self.id, dict(arguments), **self._kwargs("execute")))

    async def close(self) -> float | None:
        if not self.created:
            return None
        try:
            return _reward(await self.tool.calc_reward(self.id, **self._kwargs("calc_reward")))
        finally:
            await self.tool.release(self.id, **self._kwargs("release"))

    def _kwargs(self, method: str) -> Mapping[str, Any]:
        return self.options.get(f"{method}_kwargs") or {}


@dataclass(slots=True)
class _CallInstance:
    """A new instance for each call."""

    tool: Any
    options: Mapping[str, Any]
    data: AgentData

    async def open(self) -> None:
        """Nothing to prepare: each call creates its instance."""

    async def call(self, arguments: Mapping[str, Any]) -> ToolResult:
        created = await self.tool.create(create_kwargs=self.options.get("create_kwargs") or {})
        instance = _instance_id(created)
        try:
            return verl_result(await self.tool.execute(instance, dict(arguments), agent_data=self.data))
        finally:
            await self.tool.release(instance)

    async def close(self) -> None:
        """Nothing to release: each call releases its instance."""


def verl_result(returned: Any) -> ToolResult:
    """Result of verl's `execute` or of a function tool: a response, perhaps with the reward of the call and
    metrics. A response is text, a `ToolResponse`, or a value that becomes JSON.

    Raises InvalidWorkflowResult for video.
    """
    response, reward, *_ = returned if isinstance(returned, tuple) else (returned, None)
    if getattr(response, "video", None):
        raise InvalidWorkflowResult("a tool returned video; Strop trains on text and images")
    text = response if isinstance(response, str) else getattr(response, "text", response)
    if text is None:
        text = ""
    elif not isinstance(text, str):
        text = json.dumps(text, ensure_ascii=False, default=str)
    return ToolResult(text, _reward(reward), tuple(getattr(response, "image", None) or ()))


def _instance_id(created: Any) -> str:
    """The id that `create` returns, alone or with a response. Raises InvalidWorkflowResult for a response with
    content, which verl would put before the model's first reply."""
    if not isinstance(created, tuple):
        return str(created)
    name, response = created
    if response is not None and not response.is_empty():
        raise InvalidWorkflowResult(
            "the method `create` of a tool returned a response with content; the model gets tool messages only "
            "after a call. Return an empty ToolResponse, and write the content into the prompt"
        )
    return str(name)


def _reward(value: Any) -> float | None:
    """The number that a tool returns; None for the values without a reward (verl's tools return `[]` or text)."""
    return float(value) if isinstance(value, int | float) else None


_SECTION_KEYS = ("mcp_servers_config_path", "tool_selected_list")
_CALLS_PER_SECOND = 10.0
"""verl's default."""


@dataclass(frozen=True, slots=True)
class McpEntry:
    """An entry, without its class."""

    servers: tuple[McpServer, ...]
    selected: tuple[str, ...]
    """Names of the tools; empty for all."""
    calls_per_second: float


def is_mcp_entry(entry: Mapping[str, Any]) -> bool:
    """Whether an entry has tools of MCP servers: `type: mcp`, or `use_mcp: true` of verl's first version."""
    config = entry.get("config") or {}
    return config.get("type") == "mcp" or bool(config.get("use_mcp"))


def read_mcp_entry(entry: Mapping[str, Any], where: str) -> McpEntry:
    """Read an entry and its file of servers. Raises ConfigError."""
    section = entry.get("mcp")
    if not isinstance(section, Mapping) or not isinstance(section.get("mcp_servers_config_path"), str):
        raise ConfigError(f"{where}: type mcp needs mcp.mcp_servers_config_path, a JSON file of servers.")
    if unknown := sorted(section.keys() - {*_SECTION_KEYS}):
        raise ConfigError(f"{where}: unknown key mcp.{unknown[0]}; it has {', '.join(_SECTION_KEYS)}.")
    if "tool_schema" in entry:
        raise ConfigError(f"{where}: the server describes its tools; remove tool_schema.")
    selected = section.get("tool_selected_list") or ()
    if not isinstance(selected, Sequence) or isinstance(selected, str):
        raise ConfigError(f"{where}: mcp.tool_selected_list is {selected!r}; write a list of names.")
    config = entry.get("config") or {}
    rate = config.get("rate_limit")
    for name in ("rate_limit", "timeout"):
        value = config.get(name)
        if value is not None and (
            isinstance(value, bool) or not isinstance(value, int | float) or value <= 0
        ):
            raise ConfigError(f"{where}: config.{name} is {value!r}; write a number above 0.")
    require_mcp(where)
    servers = read_servers(section["mcp_servers_config_path"], where)
    return McpEntry(servers, tuple(map(str, selected)), _CALLS_PER_SECOND if rate is None else float(rate))


def load_mcp_tools(entry: Mapping[str, Any], make: Callable[..., Any], where: str) -> list[MCPBaseTool]:
    """Tool objects of an entry, which share one client; `make` is their class.

    Raises ConfigError for a server that does not answer, a selected tool that no server has, and a class of
    another kind.
    """
    read = read_mcp_entry(entry, where)
    client = McpClient(read.calls_per_second)
    tools = _selected(list_tools(read.servers, where), read.selected, where)
    return [_tool(tool, entry, make, client, where) for tool in tools]


def _selected(tools: Sequence[McpTool], names: Sequence[str], where: str) -> Sequence[McpTool]:
    offered = [tool.public_name for tool in tools]
    if not offered:
        raise ConfigError(f"{where}: the MCP servers have no tools.")
    for name in names:
        if name not in offered:
            raise ConfigError(
                f"{where}: mcp.tool_selected_list has {name!r}, which no server has"
                f"{did_you_mean(name, offered) or '.'} Their tools are {', '.join(offered)}."
            )
    return [tool for tool in tools if not names or tool.public_name in names]


def _tool(
    tool: McpTool, entry: Mapping[str, Any], make: Callable[..., Any], client: McpClient, where: str
) -> MCPBaseTool:
    made = construct(
        make, where, ConfigError, config=dict(entry.get("config") or {}), tool_schema=_schema(tool, where)
    )
    if not isinstance(made, MCPBaseTool):
        raise ConfigError(
            f"{where}: {entry['class_name']} is no subclass of Strop's verl.tools.mcp_base_tool.MCPBaseTool, which "
            "a class needs for type mcp. With verl installed its own class is imported, whose client Strop does "
            "not use; name MCPBaseTool itself, or write a tool class of type native."
        )
    made.connect(functools.partial(client.call, tool))
    return made


def _schema(tool: McpTool, where: str) -> OpenAIFunctionToolSchema:
    function = {
        "name": tool.public_name,
        "description": tool.description,
        "parameters": {"properties": {}, **tool.parameters},
    }
    try:
        return OpenAIFunctionToolSchema.model_validate({"type": "function", "function": function})
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(
            f"{where}: the description of the MCP tool {tool.public_name!r} cannot be used: "
            f"{'.'.join(map(str, first['loc']))}: {first['msg']}."
        ) from None


COUNTERPARTS: Mapping[str, Callable[..., Any]] = {
    "verl.tools.gsm8k_tool.Gsm8kTool": Gsm8kTool,
    "verl.tools.sandbox_fusion_tools.SandboxFusionTool": SandboxTool,
    "verl.tools.mcp_base_tool.MCPBaseTool": MCPBaseTool,
    "verl.tools.mcp_search_tool.MCPSearchTool": MCPSearchTool,
    "verl.interactions.gsm8k_interaction.Gsm8kInteraction": Gsm8kInteraction,
}
"""Classes of verl, each with Strop's own class that stands for it."""


class _Entry(BaseModel):
    """Types of an entry's values."""

    model_config = ConfigDict(strict=True)

    class_name: str
    name: str | None = None
    config: dict[str, Any] | None = None
    tool_schema: dict[str, Any] | None = None
    mcp: dict[str, Any] | None = None


_TOOL_KEYS = ("class_name", "config", "tool_schema", "mcp")
_INTERACTION_KEYS = ("class_name", "name", "config")


def load_tools(path: str, lifetime: Lifetime) -> list[Tool]:
    """The tools of a configuration file. Raises ConfigError."""
    return [
        ClassTool(tool, lifetime)
        for entry, where in _entries(path, "tools", _TOOL_KEYS)
        for tool in _load_tools(entry, where)
    ]


def check_classes(tool_config: str | None, interaction_config: str | None) -> None:
    """Raise ConfigError for a file that cannot be read, an entry that is not accepted, or a class of verl that
    neither verl nor Strop has here. Classes of the user are not imported, and no server is asked."""
    for path, section, keys in (
        (tool_config, "tools", _TOOL_KEYS),
        (interaction_config, "interaction", _INTERACTION_KEYS),
    ):
        for entry, where in [] if path is None else _entries(path, section, keys):
            if entry["class_name"].startswith("verl."):
                _find_class(entry["class_name"], where)
            if section == "tools" and is_mcp_entry(entry):
                read_mcp_entry(entry, where)


def names_servers(tool_config: str | None) -> bool:
    """Whether a file of tools has entries of MCP servers, which a workflow starts or contacts when it is loaded."""
    return tool_config is not None and any(
        is_mcp_entry(entry) for entry, _ in _entries(tool_config, "tools", _TOOL_KEYS)
    )


def load_function_tools(path: str) -> list[Tool]:
    """The functions of a Python file that verl's `@function_tool` marks. Raises ConfigError."""
    module = load_file(path, "rollout.workflow tools: function_file")
    marked = [(mark, value) for value in vars(module).values() if (mark := function_tool_mark(value))]
    if not marked:
        raise ConfigError(
            f"rollout.workflow tools: no function of {path} is a tool; decorate it with @function_tool of "
            "verl.tools.function_tool."
        )
    return [_marked_tool(mark, function) for mark, function in marked]


def load_interactions(path: str) -> dict[str, Any]:
    """The interactions of a configuration file by name. Raises ConfigError."""
    found: dict[str, Any] = {}
    for entry, where in _entries(path, "interaction", _INTERACTION_KEYS):
        class_name = entry["class_name"]
        last = re.split(r"[.:]", class_name)[-1]
        name = entry.get("name") or last.removesuffix("Interaction").lower()
        if name in found:
            raise ConfigError(f"{where}: the name {name!r} occurs twice; names of interactions are unique.")
        make = _find_class(class_name, where)
        found[name] = construct(
            make, where, ConfigError, config={**(entry.get("config") or {}), "name": name}
        )
    return found


def _entries(path: str, section: str, keys: tuple[str, ...]) -> list[tuple[dict[str, Any], str]]:
    """The entries of a file's list, each with its location for messages."""
    file = expand_user(Path(path))
    tree = read_yaml(file, regular=True)

    def locate(at: KeyPath) -> str:
        return str(tree.nearest_source(at) or file)

    entries = resolve_interpolations(tree.values, locate).get(section)
    if not isinstance(entries, list) or not entries:
        raise ConfigError(f"{file}: the file has no list {section!r}; `strop help workflows` shows one.")
    checked = []
    for number, entry in enumerate(entries):
        where = locate((section, str(number)))
        if not isinstance(entry, dict) or not isinstance(entry.get("class_name"), str):
            raise ConfigError(f"{where}: an entry of {section} needs a class_name, such as mine.py:Class.")
        try:
            config = _Entry.model_validate(entry).config or {}
        except ValidationError as error:
            raise ConfigError(f"{where}: {first_fault(error)}") from None
        kind = config.get("type", "native")
        if kind not in ("native", "mcp"):
            raise ConfigError(f"{where}: config.type is {kind!r}; write native or mcp.")
        if unknown := sorted(entry.keys() - {*keys}):
            raise ConfigError(f"{where}: unknown key {unknown[0]!r}; an entry has {', '.join(keys)}.")
        checked.append((entry, where))
    return checked


def _load_tools(entry: Mapping[str, Any], where: str) -> Sequence[Any]:
    """The tool objects of an entry: one, or those of MCP servers."""
    if is_mcp_entry(entry):
        return load_mcp_tools(entry, _find_class(entry["class_name"], where), where)
    if "mcp" in entry:
        raise ConfigError(f"{where}: the section mcp is for config.type mcp, which is not written.")
    schema = entry.get("tool_schema")
    try:
        description = None if schema is None else OpenAIFunctionToolSchema.model_validate(schema)
    except ValidationError as error:
        first = error.errors()[0]
        at = ".".join(map(str, first["loc"]))
        raise ConfigError(f"{where}: tool_schema.{at}: {first['msg']}.") from None
    make = _find_class(entry["class_name"], where)
    return [
        construct(make, where, ConfigError, config=dict(entry.get("config") or {}), tool_schema=description)
    ]


def _find_class(name: str, where: str) -> Callable[..., Any]:
    if name in COUNTERPARTS:
        return COUNTERPARTS[name]
    if name.startswith("verl.") and not is_verl_installed():
        raise ConfigError(
            f"{where}: {name} is a class of verl, which is not installed. Strop has its own classes for "
            f"{', '.join(COUNTERPARTS)}. Install verl, or write a class with the same interface and name it as "
            "file.py:Class."
        )
    return load_class(name, f"{where}: the class")


def _marked_tool(mark: FunctionToolMark, function: Callable[..., Any]) -> FunctionTool:
    schema = mark.schema
    if schema is None:
        own = function_schema(function)
        described: Mapping[str, Any] = {**own, "function": {**own["function"], "name": mark.name}}
    elif isinstance(schema, OpenAIFunctionToolSchema):
        described = schema.model_dump(exclude_unset=True, exclude_none=True)
    else:
        described = schema
    return FunctionTool(mark.name, described, function, read=verl_result)
