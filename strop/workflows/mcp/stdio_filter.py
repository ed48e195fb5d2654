"""Program that starts an MCP server, and passes on only the messages of what it writes to its standard output.

    python stdio_filter.py COMMAND [ARGUMENT ...]

Many servers write their log there, too. Lines that are no message of JSON-RPC, of whatever bytes, are left out, and the
first ones are named on standard error. A line that is too long ends the server. The filter is a process of its own,
because a server that writes without end would otherwise keep busy the event loop that serves all rollouts. It imports
the standard library only, so that it starts in a moment.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import IO

MAX_LINE_BYTES = 32 << 20
"""Maximum length of a message. It holds results of more text than a rollout reads, whatever the escapes."""
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
    """Copy the lines that are messages. Raises ValueError for one that is too long."""
    left_out = 0
    while line := source.readline(MAX_LINE_BYTES + 1):
        if len(line) > MAX_LINE_BYTES:
            raise ValueError(
                f"The MCP server {name} has written more than {MAX_LINE_BYTES:,} bytes without the end of a line to "
                "its standard output, and was ended."
            )
        if is_message(line):
            target.write(line if line.endswith(b"\n") else line + b"\n")
            target.flush()
        elif line.strip():
            left_out += 1
            if left_out <= _NAMED_LINES:
                _name(line, name, last=left_out == _NAMED_LINES)


def is_message(line: bytes) -> bool:
    """Whether a line is a request, a notification or a response of JSON-RPC 2.0, by its keys."""
    try:
        value = json.loads(line)
    except (
        ValueError,
        RecursionError,
    ):  # not UTF-8, not JSON, a number of too many digits, nested without end
        return False
    if not isinstance(value, dict) or value.get("jsonrpc") != "2.0":
        return False
    return any(key in value for key in ("method", "result", "error"))


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
