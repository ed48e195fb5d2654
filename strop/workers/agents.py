"""Agents: processes on other nodes that start one worker each for a controller, and relay its messages.

An agent computes nothing, so its signs of life stop only if its node or its network does. It opens two connections to
the controller, one for each direction, so that no connection is used by two threads at the same time.
"""

from __future__ import annotations

import json
import pickle
import struct
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Literal

from strop.errors import NodeLostError, WorkerDiedError
from strop.workers.connection import (
    HANDSHAKE_SECONDS,
    Address,
    ConnectionLost,
    Disconnected,
    SocketConnection,
    SocketServer,
    connect,
)
from strop.workers.network import shut_down_connections
from strop.workers.waiting import StopCheck, never_stop
from strop.workers.worker import LocalWorker, WorkerTarget

_POLL_SECONDS = 0.2
_BEAT_SECONDS = 1.0
"""Interval of the signs of life in each direction."""
_CHUNK_BYTES = 1 << 26
_Kind = Literal["start", "message", "kill", "beat", "exit"]
_CODES: dict[_Kind, bytes] = {"start": b"s", "message": b"m", "kill": b"k", "beat": b"b", "exit": b"x"}
_KINDS = {code: kind for kind, code in _CODES.items()}
_MORE = b"c"
"""Code of a chunk of content that a later frame completes."""
_SECONDS = struct.Struct("!d")


def serve_controller(
    address: Address,
    *,
    rank: int,
    local_rank: int,
    node: str,
    node_timeout_seconds: float,
    check: StopCheck,
) -> bool:
    """Serve one controller until it closes its connections or is silent for `node_timeout_seconds`; False if no
    controller listens at the address.

    The worker that it started has ended then. An exception of `check`, which is called about each second, ends it too.
    """
    opened: list[SocketConnection] = []
    for each_check in (never_stop, check):  # only this thread may be ended by an exception
        connection = connect(address, each_check)
        if connection is None:
            for each in opened:
                each.close()
            return False
        opened.append(connection)
    downward, upward = opened
    relay = _Relay(node_timeout_seconds)
    try:
        AgentHello(rank, local_rank, node, "to_agent").send(downward, node_timeout_seconds)
        AgentHello(rank, local_rank, node, "from_agent").send(upward, node_timeout_seconds)
        receiving = threading.Thread(target=relay.receive_commands, args=(downward,), daemon=True)
        receiving.start()
        relay.send_messages(upward)
    except ConnectionLost:
        return True
    finally:
        relay.end()
        for each in opened:
            each.close()
    return True


class _Relay:
    """The worker of an agent, and the two threads that carry frames to it and from it."""

    def __init__(self, node_timeout_seconds: float) -> None:
        self._timeout = node_timeout_seconds
        self._over = threading.Event()
        self._worker: LocalWorker | None = None

    def receive_commands(self, connection: SocketConnection) -> None:
        """Carry out the controller's frames until the connection is lost."""
        with suppress(ConnectionLost):
            while not self._over.is_set():
                kind, content = receive_frame(connection, timeout_seconds=self._timeout)
                worker = self._worker
                if kind == "start":
                    name, target = pickle.loads(content)  # by a peer that knows the token
                    self._worker = LocalWorker(name, target)
                elif kind == "message" and worker is not None:
                    with suppress(WorkerDiedError):  # `send_messages` reports it
                        worker.send_bytes(content)
                elif kind == "kill" and worker is not None:
                    worker.kill()
        self._over.set()

    def send_messages(self, connection: SocketConnection) -> None:
        """Send the worker's messages, its end, and signs of life, until the connection is lost."""
        next_beat, ended = 0.0, False
        while not self._over.is_set():
            worker = self._worker
            if worker is None or ended:
                self._over.wait(_POLL_SECONDS)
            elif worker.poll(_POLL_SECONDS):
                try:
                    message = worker.receive_bytes()
                except WorkerDiedError as death:
                    ended = True
                    end = WorkerEnd(death.exit_reason, death.killed)
                    _send_frame(connection, "exit", end.pack(), timeout_seconds=self._timeout)
                else:
                    _send_frame(connection, "message", message, timeout_seconds=self._timeout)
            if time.monotonic() >= next_beat:
                next_beat = time.monotonic() + _BEAT_SECONDS
                connection.check()
                _send_frame(connection, "beat", self._silence(), timeout_seconds=self._timeout)

    def end(self) -> None:
        """Kill the worker."""
        self._over.set()
        if self._worker is not None:
            self._worker.kill()

    def _silence(self) -> bytes:
        seconds = 0.0
        if self._worker is not None:
            with suppress(WorkerDiedError):  # a frame `exit` reports it
                seconds = self._worker.silent_seconds()
        return _pack_seconds(seconds)


class AgentWorker:
    """A `Worker` that an agent on another node runs."""

    def __init__(self, hello: AgentHello, node_timeout_seconds: float) -> None:
        self.name = f"rank-{hello.rank}"
        self.launched_rank = hello.rank
        """Number of the agent's process among those that the launcher started."""
        self.local_rank = hello.local_rank
        """Number of the process among those of its node."""
        self.node = hello.node
        """Name of its node."""
        self._timeout = node_timeout_seconds
        self._changed = threading.Condition()
        self._messages: deque[bytes] = deque()
        self._death: WorkerDiedError | None = None
        self._silent_seconds, self._heard = 0.0, time.monotonic()
        self._sending = threading.Lock()
        self._downward: SocketConnection | None = None

    def start(self, name: str, serve: WorkerTarget) -> None:
        """Start the worker's process. Raises WorkerDiedError if the node is lost."""
        self.name = name
        self._send("start", pickle.dumps((name, serve)))

    def send(self, message: object) -> None:
        self._send("message", pickle.dumps(message))

    def receive(self) -> Any:
        with self._changed:
            self._changed.wait_for(lambda: self._messages or self._death)
            if self._messages:
                return pickle.loads(self._messages.popleft())
            raise self._died()

    def poll(self, seconds: float) -> bool:
        with self._changed:
            return bool(self._changed.wait_for(lambda: self._messages or self._death, seconds))

    def silent_seconds(self) -> float:
        with self._changed:
            if self._death is not None:
                raise self._died()
            return self._silent_seconds + max(0.0, time.monotonic() - self._heard - _BEAT_SECONDS)

    def kill(self) -> None:
        """A worker whose node is lost is killed by its agent, once that misses this process."""
        with suppress(WorkerDiedError):
            self._send("kill", b"")

    def last_output(self) -> str:
        """The launcher of the agent has its output."""
        return ""

    @property
    def is_connected(self) -> bool:
        """Whether its agent is connected in both directions."""
        return self._downward is not None and self._death is None

    @property
    def is_lost(self) -> bool:
        """Whether its node is lost."""
        return isinstance(self._death, NodeLostError)

    def serve_connection(self, hello: AgentHello, connection: SocketConnection) -> None:
        """Handle a connection of the agent until it is lost; with it go this process's connections to its node."""
        host = connection.peer_host
        try:
            if hello.direction == "to_agent":
                self._send_beats(connection)
            else:
                self._receive_frames(connection)
        except Disconnected:  # this process closes the connection
            raise
        except ConnectionLost:
            self._end(
                NodeLostError(
                    self.name,
                    self.node,
                    f"which has given no sign of life for {self._timeout:g} s or has closed its connection",
                )
            )
            shut_down_connections(host)
            raise

    def _send_beats(self, connection: SocketConnection) -> None:
        with self._changed:
            self._downward = connection
            self._changed.notify_all()
        while not self.is_lost:
            if self._sending.acquire(blocking=False):  # a message is a sign of life, too
                try:
                    _send_frame(connection, "beat", timeout_seconds=self._timeout)
                finally:
                    self._sending.release()
            with self._changed:
                self._changed.wait_for(lambda: self.is_lost, _BEAT_SECONDS)
            connection.check()

    def _receive_frames(self, connection: SocketConnection) -> None:
        while True:
            kind, content = receive_frame(connection, timeout_seconds=self._timeout)
            if kind == "exit":
                end = WorkerEnd.unpack(content)
                self._end(WorkerDiedError(self.name, f"on node {self.node} {end.reason}", killed=end.killed))
                continue
            with self._changed:
                self._heard = time.monotonic()
                if kind == "message":
                    self._messages.append(content)
                elif kind == "beat":
                    self._silent_seconds = _unpack_seconds(content)
                self._changed.notify_all()

    def _end(self, death: WorkerDiedError) -> None:
        with self._changed:
            self._death = self._death or death
            self._changed.notify_all()

    def _send(self, kind: _Kind, content: bytes) -> None:
        if self._death is not None:
            raise self._died()
        assert self._downward is not None
        try:
            with self._sending:
                _send_frame(self._downward, kind, content, timeout_seconds=self._timeout)
        except ConnectionLost:
            self._end(NodeLostError(self.name, self.node, "which does not respond"))
            raise self._died() from None

    def _died(self) -> WorkerDiedError:
        assert self._death is not None
        return self._death


class AgentHub:
    """The server to which the agents of one group of workers connect."""

    def __init__(self, host: str, node_timeout_seconds: float) -> None:
        """Listen at an address of this machine; a node that is silent for `node_timeout_seconds` counts as lost."""
        self.host = host
        self._timeout = node_timeout_seconds
        self._workers: dict[int, AgentWorker] = {}
        self._lock = threading.Lock()
        self._server = SocketServer(host, self._serve, "strop-agents")

    @property
    def address(self) -> Address:
        """Address for the agents."""
        return self._server.address

    @property
    def workers(self) -> list[AgentWorker]:
        """Workers of the connected agents, by the number of the launcher."""
        with self._lock:
            found = sorted(self._workers.items())
        return [worker for _, worker in found if worker.is_connected]

    @property
    def lost_nodes(self) -> int:
        """Number of workers whose node is lost."""
        with self._lock:
            return sum(worker.is_lost for worker in self._workers.values())

    def close(self) -> None:
        """Close all connections; the agents kill their workers."""
        self._server.close()

    def _serve(self, connection: SocketConnection) -> None:
        hello = AgentHello.receive(connection, HANDSHAKE_SECONDS)
        with self._lock:
            worker = self._workers.setdefault(hello.rank, AgentWorker(hello, self._timeout))
        worker.serve_connection(hello, connection)


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


def _send_frame(
    connection: SocketConnection, kind: _Kind, content: bytes = b"", *, timeout_seconds: float
) -> None:
    """Send a frame, in chunks. Raises `ConnectionLost` if the peer does not receive a chunk in time."""
    rest = memoryview(content)
    while len(rest) > _CHUNK_BYTES:
        connection.send_bytes(_MORE + rest[:_CHUNK_BYTES], timeout_seconds=timeout_seconds)
        rest = rest[_CHUNK_BYTES:]
    connection.send_bytes(_CODES[kind] + rest, timeout_seconds=timeout_seconds)


def receive_frame(connection: SocketConnection, *, timeout_seconds: float) -> tuple[_Kind, bytes]:
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


def _pack_seconds(seconds: float) -> bytes:
    """The content of a frame `beat`: time since the worker's last sign of life."""
    return _SECONDS.pack(seconds)


def _unpack_seconds(content: bytes) -> float:
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
