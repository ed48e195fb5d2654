"""Program that starts an MCP server, and passes on only the messages of what it writes to its standard output.

    python stdio_filter.py COMMAND [ARGUMENT ...]

Many servers write their log there, too. Lines that are no message of JSON-RPC, of whatever bytes, are left out, and the
first ones are named on standard error. Notifications, which the client has no use for, are left out too. A line that is
too long ends the server, and so do requests without an answer in between. The filter is a process of its own,
because a server that writes without end would otherwise keep busy the event loop that serves all rollouts. It imports
the standard library only, so that it starts in a moment.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import IO, Any

MAX_LINE_BYTES = 32 << 20
"""Maximum length of a message. It holds results of more text than a rollout reads, whatever the escapes."""
_MAX_REQUESTS = 1000
"""Maximum number of a server's requests to the client, such as `ping`, between two of its answers."""
_NAMED_LINES = 3
_SHOWN_CHARACTERS = 80


def main() -> None:
    """Run the server until its standard output ends; exits with its code."""
    command = sys.argv[1:]
    try:
        server = subprocess.Popen(command, stdout=subprocess.PIPE)
    except OSError as error:
        sys.exit(f"The MCP server {command[0]} cannot be started: {error.strerror}.")
    assert server.stdout is not None
    try:
        pass_messages(server.stdout, sys.stdout.buffer, command[0])
    except (OSError, ValueError) as error:
        server.kill()
        server.wait()
        sys.exit(str(error))
    sys.stdout.close()  # the client sees the end also of a server that goes on without its output
    sys.exit(server.wait())


def pass_messages(source: IO[bytes], target: IO[bytes], name: str) -> None:
    """Copy the answers and requests. Raises ValueError for a line that is too long, and for too many requests."""
    left_out = requests = 0
    while line := source.readline(MAX_LINE_BYTES + 1):
        if len(line) > MAX_LINE_BYTES:
            raise ValueError(
                f"The MCP server {name} has written more than {MAX_LINE_BYTES:,} bytes without the end of a line to "
                "its standard output, and was ended."
            )
        message = _message(line)
        if message is None:
            left_out += bool(line.strip())
            if line.strip() and left_out <= _NAMED_LINES:
                _name(line, name, last=left_out == _NAMED_LINES)
            continue
        requests = requests + ("id" in message) if "method" in message else 0
        if requests > _MAX_REQUESTS:
            raise ValueError(
                f"The MCP server {name} has sent {requests:,} requests without an answer in between, and was ended."
            )
        if "id" in message:
            target.write(line if line.endswith(b"\n") else line + b"\n")
            target.flush()


def _message(line: bytes) -> dict[str, Any] | None:
    """The request, notification or response of JSON-RPC 2.0 that a line is, by its keys; None for another line."""
    try:
        value = json.loads(line)
        if b"\\u" in line:  # half of a surrogate pair, which the client cannot read
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or value.get("jsonrpc") != "2.0":
        return None
    return value if any(key in value for key in ("method", "result", "error")) else None


def _name(line: bytes, name: str, *, last: bool) -> None:
    shown = ascii(line[:_SHOWN_CHARACTERS].decode(errors="replace").rstrip())
    rest = " Further ones are not named." if last else ""
    print(
        f"note: the MCP server {name} wrote a line that is no message of MCP to its standard output, which is left "
        f"out: {shown}. A server logs to its standard error.{rest}",
        file=sys.stderr,
        flush=True,
    )


if __name__ == "__main__":
    main()
