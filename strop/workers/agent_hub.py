"""Agents on other nodes as their controller sees them, and the workers that they run."""

from __future__ import annotations

import pickle
import threading
import time
from collections import deque
from contextlib import suppress
from typing import Any

from strop.errors import NodeLostError, WorkerDiedError
from strop.workers.agent_frames import (
    BEAT_SECONDS,
    AgentHello,
    Kind,
    WorkerEnd,
    receive_frame,
    send_frame,
    unpack_seconds,
)
from strop.workers.connection import (
    HANDSHAKE_SECONDS,
    Address,
    ConnectionLost,
    Disconnected,
    SocketConnection,
)
from strop.workers.network import shut_down_connections
from strop.workers.server import SocketServer
from strop.workers.worker import WorkerTarget


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
        """See `Worker`."""
        self._send("message", pickle.dumps(message))

    def receive(self) -> Any:
        """See `Worker`."""
        with self._changed:
            self._changed.wait_for(lambda: self._messages or self._death)
            if self._messages:
                return pickle.loads(self._messages.popleft())
            raise self._died()

    def poll(self, seconds: float) -> bool:
        """See `Worker`."""
        with self._changed:
            return bool(self._changed.wait_for(lambda: self._messages or self._death, seconds))

    def silent_seconds(self) -> float:
        """See `Worker`."""
        with self._changed:
            if self._death is not None:
                raise self._died()
            return self._silent_seconds + max(0.0, time.monotonic() - self._heard - BEAT_SECONDS)

    def kill(self) -> None:
        """See `Worker`. A worker whose node is lost is killed by its agent, once that misses this process."""
        with suppress(WorkerDiedError):
            self._send("kill", b"")

    def last_output(self) -> str:
        """See `Worker`. The launcher of the agent has its output."""
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
                    send_frame(connection, "beat", timeout_seconds=self._timeout)
                finally:
                    self._sending.release()
            with self._changed:
                self._changed.wait_for(lambda: self.is_lost, BEAT_SECONDS)
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
                    self._silent_seconds = unpack_seconds(content)
                self._changed.notify_all()

    def _end(self, death: WorkerDiedError) -> None:
        with self._changed:
            self._death = self._death or death
            self._changed.notify_all()

    def _send(self, kind: Kind, content: bytes) -> None:
        if self._death is not None:
            raise self._died()
        assert self._downward is not None
        try:
            with self._sending:
                send_frame(self._downward, kind, content, timeout_seconds=self._timeout)
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
