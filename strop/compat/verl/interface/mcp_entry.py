"""Entries of verl's tool configuration file with `type: mcp`: all tools, or selected ones, of the servers of a file.

- class_name: verl.tools.mcp_base_tool.MCPBaseTool     # or a subclass
  config: {type: mcp, rate_limit: 10, timeout: 30}     # calls per second, seconds
  mcp:
    mcp_servers_config_path: servers.json
    tool_selected_list: [search]                       # all tools if empty
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from strop.compat.verl.interface.mcp_tool import MCPBaseTool
from strop.compat.verl.interface.schemas import OpenAIFunctionToolSchema
from strop.config.user_code import construct
from strop.errors import ConfigError
from strop.printable import did_you_mean
from strop.workflows.mcp.client import McpClient, McpTool, list_tools, require_mcp
from strop.workflows.mcp.servers import McpServer, read_servers

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
