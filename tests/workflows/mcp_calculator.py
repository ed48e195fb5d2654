"""A server with tools, of the package mcp itself: on stdio, or with `http` on a free port, which it prints."""

import socket
import sys

import uvicorn
from mcp.server.mcpserver import MCPServer

server = MCPServer("calculator")


@server.tool()
def add(a: int, b: int | None = None) -> str:
    """Add two numbers."""
    return f"sum {a + (b or 0)}"


@server.tool()
def fail() -> str:
    """Fail."""
    raise ValueError("never works")


if __name__ == "__main__":
    if sys.argv[1:] == ["http"]:
        listening = socket.create_server(("127.0.0.1", 0))
        print(listening.getsockname()[1], flush=True)
        config = uvicorn.Config(server.streamable_http_app(), log_level="error")
        uvicorn.Server(config).run(sockets=[listening])
    else:
        server.run("stdio")
