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

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from strop.compat.verl.interface.class_tool import ClassTool, verl_result
from strop.compat.verl.interface.function_tool import FunctionToolMark, function_tool_mark
from strop.compat.verl.interface.gsm8k_interaction import Gsm8kInteraction
from strop.compat.verl.interface.gsm8k_tool import Gsm8kTool
from strop.compat.verl.interface.imports import is_verl_installed, load_class, load_file
from strop.compat.verl.interface.mcp_entry import is_mcp_entry, load_mcp_tools, read_mcp_entry
from strop.compat.verl.interface.mcp_tool import MCPBaseTool, MCPSearchTool
from strop.compat.verl.interface.sandbox_tool import SandboxTool
from strop.compat.verl.interface.schemas import OpenAIFunctionToolSchema
from strop.config.load.config_tree import KeyPath, resolve_interpolations
from strop.config.load.schema_faults import first_fault
from strop.config.load.yaml_file import read_yaml
from strop.config.paths import expand_user
from strop.config.user_code import construct
from strop.errors import ConfigError
from strop.workflows.tool import FunctionTool, Lifetime, Tool, function_schema

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
