"""Frames between the controller of a group of workers and its agents on other nodes.

An agent opens two connections to the controller, one for each direction, so that no connection is used by two threads
at the same time.
"""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, dataclass
from typing import Literal

from strop.workers.connection import ConnectionLost, SocketConnection

BEAT_SECONDS = 1.0
"""Interval of the signs of life in each direction."""
_CHUNK_BYTES = 1 << 26
Kind = Literal["start", "message", "kill", "beat", "exit"]
_CODES: dict[Kind, bytes] = {"start": b"s", "message": b"m", "kill": b"k", "beat": b"b", "exit": b"x"}
_KINDS = {code: kind for kind, code in _CODES.items()}
_MORE = b"c"
"""Code of a chunk of content that a later frame completes."""
_SECONDS = struct.Struct("!d")


@dataclass(frozen=True, slots=True)
class AgentHello:
    """The first message of an agent's connection."""

    rank: int
    """Number of the agent's process among those that the launcher started."""
    local_rank: int
    """Number of the process among those of its node."""
    node: str
    """Name of the agent's node."""
    direction: Literal["to_agent", "from_agent"]
    """Direction of the frames on this connection."""

    def send(self, connection: SocketConnection, timeout_seconds: float) -> None:
        """Raises `ConnectionLost` if the controller does not receive it in time."""
        connection.send(asdict(self), timeout_seconds=timeout_seconds)

    @classmethod
    def receive(cls, connection: SocketConnection, timeout_seconds: float) -> AgentHello:
        """Raises `ConnectionLost` if the first message is another one."""
        try:
            return cls(**connection.receive(timeout_seconds=timeout_seconds))
        except TypeError as error:
            raise ConnectionLost from error


def send_frame(
    connection: SocketConnection, kind: Kind, content: bytes = b"", *, timeout_seconds: float
) -> None:
    """Send a frame, in chunks. Raises `ConnectionLost` if the peer does not receive a chunk in time."""
    rest = memoryview(content)
    while len(rest) > _CHUNK_BYTES:
        connection.send_bytes(_MORE + rest[:_CHUNK_BYTES], timeout_seconds=timeout_seconds)
        rest = rest[_CHUNK_BYTES:]
    connection.send_bytes(_CODES[kind] + rest, timeout_seconds=timeout_seconds)


def receive_frame(connection: SocketConnection, *, timeout_seconds: float) -> tuple[Kind, bytes]:
    """The next frame. Raises `ConnectionLost` if the next chunk does not arrive in time."""
    chunks: list[bytes] = []
    while True:
        received = connection.receive_bytes(timeout_seconds=timeout_seconds)
        code, content = received[:1], received[1:]
        chunks.append(content)
        if code == _MORE:
            continue
        if code not in _KINDS:
            raise ConnectionLost
        return _KINDS[code], chunks[0] if len(chunks) == 1 else b"".join(chunks)


def pack_seconds(seconds: float) -> bytes:
    """The content of a frame `beat`: time since the worker's last sign of life."""
    return _SECONDS.pack(seconds)


def unpack_seconds(content: bytes) -> float:
    """The seconds of a frame `beat`."""
    return float(_SECONDS.unpack(content)[0])


@dataclass(frozen=True, slots=True)
class WorkerEnd:
    """The content of a frame `exit`: how a worker ended."""

    reason: str
    """Continues "it ended", such as `by signal 9 (Killed)`."""
    killed: bool
    """Whether the process was killed from outside."""

    def pack(self) -> bytes:
        """As bytes."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def unpack(cls, content: bytes) -> WorkerEnd:
        """From bytes."""
        return cls(**json.loads(content))
