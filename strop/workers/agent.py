"""An agent: a process on another node that starts one worker for a controller, and relays its messages.

The agent itself computes nothing, so its signs of life stop only if its node or its network does.
"""

from __future__ import annotations

import pickle
import threading
import time
from contextlib import suppress

from strop.errors import WorkerDiedError
from strop.workers.agent_frames import (
    BEAT_SECONDS,
    AgentHello,
    WorkerEnd,
    pack_seconds,
    receive_frame,
    send_frame,
)
from strop.workers.connection import Address, ConnectionLost, SocketConnection, connect
from strop.workers.waiting import StopCheck, never_stop
from strop.workers.worker import LocalWorker

_POLL_SECONDS = 0.2


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
                    send_frame(connection, "exit", end.pack(), timeout_seconds=self._timeout)
                else:
                    send_frame(connection, "message", message, timeout_seconds=self._timeout)
            if time.monotonic() >= next_beat:
                next_beat = time.monotonic() + BEAT_SECONDS
                connection.check()
                send_frame(connection, "beat", self._silence(), timeout_seconds=self._timeout)

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
        return pack_seconds(seconds)
