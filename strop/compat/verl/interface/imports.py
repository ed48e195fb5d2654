"""Import of user code written for verl: `from verl.tools.base_tool import BaseTool` without verl.

Modules of this package stand under verl's names where verl is not installed; an installed verl is used itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from strop.compat.verl.interface import agent_loop, tools
from strop.compat.verl.interface.interactions import BaseInteraction, Gsm8kInteraction
from strop.compat.verl.interface.tools import BaseTool, Gsm8kTool, MCPBaseTool, MCPSearchTool, SandboxTool
from strop.config.user_code import ImportPath
from strop.errors import ConfigError
from strop.provided_modules import provide_modules

_SCHEMAS = {name: value for name, value in vars(tools).items() if name.startswith(("OpenAI", "Tool"))}
_LOOPS = ("AgentLoopBase", "AgentLoopMetrics", "AgentLoopOutput", "DictConfigWrap", "register")
_PROVIDED = {
    "verl.tools.base_tool": {**_SCHEMAS, "BaseTool": BaseTool},
    "verl.tools.schemas": _SCHEMAS,
    "verl.tools.function_tool": {"function_tool": tools.function_tool},
    "verl.tools.gsm8k_tool": {"Gsm8kTool": Gsm8kTool},
    "verl.tools.sandbox_fusion_tools": {"SandboxFusionTool": SandboxTool},
    "verl.tools.mcp_base_tool": {"MCPBaseTool": MCPBaseTool},
    "verl.tools.mcp_search_tool": {"MCPSearchTool": MCPSearchTool},
    "verl.interactions.base": {"BaseInteraction": BaseInteraction},
    "verl.interactions.gsm8k_interaction": {"Gsm8kInteraction": Gsm8kInteraction},
    "verl.experimental.agent_loop.agent_loop": {name: getattr(agent_loop, name) for name in _LOOPS},
    "verl.utils.rollout_trace": {"rollout_trace_op": agent_loop.rollout_trace_op},
}
"""Modules of verl that Strop provides, with the names in them."""


def is_verl_installed() -> bool:
    """Whether Python finds a package `verl`; a folder without `__init__.py` is none."""
    found = PathFinder.find_spec("verl")
    return found is not None and found.origin is not None


def load_class(name: str, what: str) -> Callable[..., Any]:
    """Import a class written for verl: a dotted path, also below the current directory, or `file.py:Class`.

    `what` describes it in messages. Raises ConfigError if it does not exist or fails to import.
    """
    with _verl_modules():
        return ImportPath(name, f"{what} {name!r}", "Class", (), ConfigError).load()


def load_file(file: str, what: str) -> ModuleType:
    """Import a file written for verl. Raises ConfigError if it does not exist or fails to import."""
    with _verl_modules():
        return ImportPath(file, f"{what} {file!r}", "name", (), ConfigError).import_file(Path(file))


@contextmanager
def _verl_modules() -> Iterator[None]:
    """Provide verl's modules, and find modules below the current directory, as `python -m` does."""
    provide_modules("verl", "verl", _PROVIDED)
    before = list(sys.path)
    sys.path.append(str(Path.cwd()))
    try:
        yield
    finally:
        sys.path[:] = before
