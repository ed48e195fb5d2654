"""Files of MCP servers: JSON with `mcpServers`, as verl's `mcp_servers_config_path` and most MCP clients have it.

{"mcpServers": {
    "calculator": {"command": "python", "args": ["server.py"], "env": {"KEY": "value"}},
    "search":     {"url": "https://host/mcp", "auth_token": "..."}
}}
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from strop.config.load.schema_faults import first_fault
from strop.config.paths import expand_user
from strop.errors import ConfigError
from strop.printable import did_you_mean
from strop.workers.json_text import parse_json

Transport = Literal["stdio", "sse", "http"]
_TRANSPORTS: Mapping[str, Transport] = {
    "stdio": "stdio",
    "sse": "sse",
    "http": "http",
    "streamable-http": "http",
    "streamable_http": "http",
}
_PROCESS_KEYS = ("command", "args", "env", "cwd")
_URL_KEYS = ("url", "headers", "auth", "auth_token")
_OTHER_KEYS = ("transport", "type", "description", "icon")
"""Keys that any server may have; the last two are texts for people."""


class _Entry(BaseModel):
    """Types of an entry's values; numbers are texts."""

    model_config = ConfigDict(coerce_numbers_to_str=True)

    command: str = ""
    args: list[str] = []
    env: dict[str, str] = {}
    cwd: str | None = None
    url: str = ""
    headers: dict[str, str] = {}
    auth: str | None = None
    auth_token: str | None = None
    transport: str | None = None
    type: str | None = None


@dataclass(frozen=True, slots=True)
class McpServer:
    """One server: a process that is started, or a URL."""

    name: str
    transport: Transport
    command: str = ""
    """Program of a `stdio` server."""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables in addition to those of a login shell (HOME, PATH, ...); the process gets no others."""
    cwd: str | None = None
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Headers of each request, which may hold credentials."""
    prefix: str = ""
    """Text before the names of its tools."""


def read_servers(path: str, where: str) -> tuple[McpServer, ...]:
    """The servers of a file; `where` is the place that names it. Raises ConfigError.

    Tools of several servers have the server's name and an underscore before their own, as in verl, unless the
    server has an `auth_token`.
    """
    file = expand_user(Path(path))
    try:
        content = parse_json(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{where}: {file} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise ConfigError(f"{where}: {file} is not JSON: {error}.") from None
    entries = content.get("mcpServers") if isinstance(content, dict) else None
    if not isinstance(entries, dict) or not entries:
        raise ConfigError(f"{where}: {file} has no servers; write them under the key mcpServers.")
    shared = [
        name for name, entry in entries.items() if not (isinstance(entry, dict) and "auth_token" in entry)
    ]
    prefixes = {name: f"{name}_" for name in shared} if len(shared) > 1 else {}
    return tuple(
        _server(name, entry, prefixes.get(name, ""), f"{where}: {file}: the server {name!r}")
        for name, entry in entries.items()
    )


def _server(name: str, entry: Any, prefix: str, what: str) -> McpServer:
    if not isinstance(entry, dict) or ("command" in entry) == ("url" in entry):
        raise ConfigError(f"{what} needs either `command`, a program to start, or `url`.")
    keys = (*(_PROCESS_KEYS if "command" in entry else _URL_KEYS), *_OTHER_KEYS)
    for key in entry:
        if key not in keys:
            raise ConfigError(
                f"{what}: unknown key {key!r}{did_you_mean(key, keys) or '.'} Its keys are {', '.join(keys)}."
            )
    try:
        read = _Entry.model_validate(entry)
    except ValidationError as error:
        raise ConfigError(f"{what}: {first_fault(error)}") from None
    written = read.transport or read.type
    if written is not None and written not in _TRANSPORTS:
        raise ConfigError(f"{what}: the transport is {written!r}; write stdio, sse or http.")
    if "command" in entry:
        if written not in (None, "stdio"):
            raise ConfigError(f"{what} has a `command`, so its transport is stdio, not {written}.")
        return McpServer(
            name,
            "stdio",
            command=read.command,
            args=tuple(read.args),
            env=read.env,
            cwd=read.cwd,
            prefix=prefix,
        )
    if written == "stdio":
        raise ConfigError(f"{what} has a `url`, so its transport is http or sse.")
    transport = _url_transport(read.url, "auth_token" in entry) if written is None else _TRANSPORTS[written]
    return McpServer(name, transport, url=read.url, headers=_headers(read, what), prefix=prefix)


def _url_transport(url: str, has_token: bool) -> Transport:
    """Transport of a URL without a written one, as verl and its client choose it."""
    return "sse" if has_token or re.search(r"/sse(/|\?|&|$)", url) else "http"


def _headers(entry: _Entry, what: str) -> dict[str, str]:
    headers = dict(entry.headers)
    token = entry.auth if entry.auth_token is None else entry.auth_token
    if token == "oauth":
        raise ConfigError(
            f"{what}: auth is oauth, which asks a person to log in; write a token as `auth_token`, or `headers`."
        )
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    return headers
