"""The client of a buffer process: a store whose every call is a request over a socket."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strop.buffer.codec import decode, encode
from strop.buffer.store import Leases, PollResult
from strop.errors import StoreError
from strop.protocols import BufferCounts
from strop.types import ExperienceGroup
from strop.workers.connection import (
    PEER_TIMEOUT_SECONDS,
    Address,
    ConnectionLost,
    SocketConnection,
    connect,
)
from strop.workers.waiting import StopCheck, TimedWait, never_stop

OUTAGE_SECONDS = 120.0
"""Longest wait for the restart of a buffer process that was killed."""
_RETRY_SECONDS = 0.2
_GROUPS_PER_REQUEST = 16
"""Groups in one put request; while the buffer is full, one."""


@dataclass(frozen=True, slots=True)
class BufferClientRole:
    """The name of a client, and what it does with the buffer."""

    name: str
    reads: bool
    writes: bool


class RemoteStore:
    """A `GroupStore` in the buffer's process. Any thread may call; each process opens its own."""

    def __init__(self, address_file: Path, member: BufferClientRole, check: StopCheck) -> None:
        """`address_file` is the file in which the buffer's process writes its address."""
        self._address_file = address_file
        self._member = member
        self._check = check
        self._lock = threading.RLock()
        self._session = ""
        """The session under which this client has joined last."""
        self._joined = False
        self._leases = Leases()
        self._idle_connections: list[SocketConnection] = []
        """Open connections that no thread uses at the moment."""
        self._finished = False
        self._closed = False
        self._request({"do": "counts"})

    def put(self, groups: Sequence[ExperienceGroup], seconds: float) -> int:
        """See `GroupStore`."""
        if self._finished:
            raise StoreError("Groups cannot be put into a buffer after `finish` was called on it.")
        sent = groups[: 1 if seconds else _GROUPS_PER_REQUEST]
        contents = [encode(group) for group in sent]
        reply = self._request({"do": "put", "seconds": seconds}, contents)[0]
        return int(reply["put"])

    def take(self, groups: int, seconds: float, *, require_all: bool) -> PollResult:
        """See `GroupStore`."""
        request = {"do": "take", "count": groups, "seconds": seconds, "require_all": require_all}
        while True:
            reply, contents, session = self._request(request)
            if reply["uses"] is None:
                return PollResult(None, reply["ready"], reply["ended"])
            taken = list(zip(map(decode, contents), reply["uses"], strict=True))
            with self._lock:
                if session == self._session:
                    self._leases.add((group.id, use) for group, use in taken)
                    return PollResult(taken, reply["ready"], reply["ended"])
            # Another thread has joined again meanwhile and did not list these groups: they were queued again.

    def acknowledge(self, ids: Sequence[str]) -> None:
        """See `strop.protocols.Buffer`."""
        with self._lock:
            uses = self._leases.oldest(ids)
        self._request({"do": "acknowledge", "uses": uses})
        with self._lock:
            self._leases.remove(uses)

    def discard(self, ids: Sequence[str]) -> None:
        """See `strop.protocols.Buffer`."""
        self._request({"do": "discard", "ids": list(ids)})
        with self._lock:
            self._leases.remove(self._leases.newest(set(ids)))

    def finish(self) -> None:
        """See `strop.protocols.Buffer`."""
        self._finished = True
        self._request({"do": "finish"})

    def counts(self) -> BufferCounts:
        """See `strop.protocols.Buffer`."""
        return BufferCounts(*self._request({"do": "counts"})[0]["counts"])

    def close(self) -> None:
        """See `strop.protocols.Buffer`. Does not wait for a buffer process that has ended."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(ConnectionLost):
            self._exchange({"do": "leave", "session": self._session}, [])
        for connection in self._idle_connections:
            connection.close()

    def _request(
        self, request: dict[str, Any], contents: Sequence[bytes] = ()
    ) -> tuple[dict[str, Any], list[bytes], str]:
        """Send a request until it is answered: the reply, the groups that came with it, and the session.

        Raises `StoreError` for an error of the server, and if the server cannot be reached for too long.
        """
        wait = TimedWait(OUTAGE_SECONDS, self._check)
        while True:
            if self._closed:
                raise StoreError("The buffer is closed.")
            session = self._session
            try:
                session = self._join()
                reply, received = self._exchange({**request, "session": session}, contents)
            except ConnectionLost as error:
                self._invalidate_session(session)
                self._wait_to_reconnect(wait, error)
                continue
            except BaseException:
                self._invalidate_session(session)  # the reply is unknown
                raise
            if "error" in reply:
                raise StoreError(reply["error"])
            if "unknown_session" not in reply:
                return reply, received, session
            self._invalidate_session(session)

    def _join(self) -> str:
        """The session. A new one, if the last is invalid, queues again the groups that this client does not
        list."""
        with self._lock:
            if not self._joined:
                new = uuid.uuid4().hex
                request = {
                    "do": "join",
                    "session": new,
                    "before": self._session,
                    "member": self._member.name,
                    "reads": self._member.reads,
                    "writes": self._member.writes,
                    "held": self._leases.all(),
                    "finished": self._finished,
                }
                reply, _ = self._exchange(request, [])
                if "error" in reply:
                    raise StoreError(reply["error"])
                self._session, self._joined = new, True
            return self._session

    def _invalidate_session(self, session: str) -> None:
        """Join again before the next request, unless another thread has done so already."""
        with self._lock:
            if session == self._session:
                self._joined = False

    def _exchange(
        self, request: dict[str, Any], contents: Sequence[bytes]
    ) -> tuple[dict[str, Any], list[bytes]]:
        """Send one request and receive its reply. Raises `ConnectionLost`."""
        connection = self._acquire_connection()
        try:
            connection.send({"groups": len(contents), **request}, timeout_seconds=PEER_TIMEOUT_SECONDS)
            for content in contents:
                connection.send_bytes(content, timeout_seconds=PEER_TIMEOUT_SECONDS)
            reply = connection.receive(timeout_seconds=PEER_TIMEOUT_SECONDS)
            received = [
                connection.receive_bytes(timeout_seconds=PEER_TIMEOUT_SECONDS) for _ in range(reply["groups"])
            ]
        except BaseException:
            connection.close()
            raise
        with self._lock:
            self._idle_connections.append(connection)
        return reply, received

    def _acquire_connection(self) -> SocketConnection:
        with self._lock:
            if self._idle_connections:
                return self._idle_connections.pop()
        # Without stop checks: each reply takes at most a second.
        connection = connect(Address.load(self._address_file), never_stop)
        if connection is None:
            raise ConnectionLost
        return connection

    def _wait_to_reconnect(self, wait: TimedWait, error: ConnectionLost) -> None:
        with self._lock:
            for connection in self._idle_connections:  # all lead to the process that was lost
                connection.close()
            self._idle_connections = []
        if wait.remaining_seconds <= 0:
            raise StoreError(
                f"The buffer's process has not replied for {wait.elapsed_seconds:.0f} s, and was not "
                "restarted. Start the run again: it resumes from its last state, and no group in the buffer "
                "is lost."
            ) from error
        wait.sleep("the buffer's process", _RETRY_SECONDS)
