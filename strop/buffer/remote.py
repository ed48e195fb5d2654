"""A queue as a process of its own, which explorer and trainer reach over sockets.

    explorer, trainer                        buffer process
      queue    waits                           server   serves each connection
        client   sends requests  <--socket-->    store    groups and their backup

Any of the three processes may be killed at any moment. Each reader and writer joins under a session of its
own, and joins again whenever a reply was lost: it then lists the groups that it holds, and all others are
queued again.

A request is JSON with `do`, the `session`, and the number of `groups` that follow, each as the codec's
bytes. A reply has the same form: `unknown_session` if the session has not joined this process, `error`
with a text that the client raises, or the result.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strop.buffer.codec import decode, encode
from strop.buffer.queue_policy import GroupUse
from strop.buffer.store import InMemoryStore, Leases, PollResult
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


class BufferServer:
    """Serves many writers and one reader; a new reader replaces the one before."""

    def __init__(self, store: InMemoryStore) -> None:
        self._store = store
        self._store.set_writers(store.writers)
        self._lock = threading.Lock()
        self._members: dict[str, str] = {}
        """Names of the clients that have joined, by session."""
        self._reader: str | None = None
        """The reader's session."""
        self._replaced: set[str] = set()

    def serve(self, connection: SocketConnection) -> None:
        """Serve requests until the connection is lost."""
        while True:
            request = connection.receive()
            contents = [
                connection.receive_bytes(timeout_seconds=PEER_TIMEOUT_SECONDS)
                for _ in range(request["groups"])
            ]
            try:
                reply, groups = self._reply(request, [decode(content) for content in contents])
            except StoreError as error:
                reply, groups = {"error": str(error)}, []
            connection.send({"groups": len(groups), **reply}, timeout_seconds=PEER_TIMEOUT_SECONDS)
            for group in groups:
                connection.send_bytes(encode(group), timeout_seconds=PEER_TIMEOUT_SECONDS)

    def _reply(
        self, request: dict[str, Any], groups: Sequence[ExperienceGroup]
    ) -> tuple[dict[str, Any], Sequence[ExperienceGroup]]:
        session, store = request["session"], self._store
        if request["do"] == "join":
            self._join(request)
            return {}, []
        if session not in self._members:
            self._require_not_replaced(session)
            return {"unknown_session": True}, []
        match request["do"]:
            case "put":
                return {"put": store.put(groups, request["seconds"])}, []
            case "take":
                return self._take(request)
            case "acknowledge":
                with self._lock:
                    self._require_not_replaced(session)
                    store.acknowledge_uses([(id, use) for id, use in request["uses"]])
            case "discard":
                with self._lock:
                    self._require_not_replaced(session)
                    store.discard(request["ids"])
            case "finish":
                self._set_writers({self._members[session]: True})
            case "counts":
                counts = store.counts()
                return {"counts": [counts.queued, counts.leased, counts.done, counts.evicted]}, []
            case "leave":
                self._leave(session)
        return {}, []

    def _join(self, request: dict[str, Any]) -> None:
        """Add a client under a new session, in place of the session that it had before."""
        session, member = request["session"], request["member"]
        with self._lock:
            self._members.pop(request["before"], None)
            self._members[session] = member
            if request["reads"]:
                if self._reader is not None and self._reader != request["before"]:
                    self._replaced.add(self._reader)
                    self._members.pop(self._reader, None)
                self._reader = session
                self._requeue_except([(id, use) for id, use in request["held"]])
        if request["writes"]:
            self._set_writers({member: request["finished"]})

    def _take(self, request: dict[str, Any]) -> tuple[dict[str, Any], Sequence[ExperienceGroup]]:
        """Waits before it takes the lock, so that another reader can join meanwhile."""
        count = request["count"]
        self._store.wait_until_ready(count, request["seconds"])
        with self._lock:
            if request["session"] != self._reader:
                self._require_not_replaced(request["session"])
                return {"unknown_session": True}, []
            polled = self._store.take(count, 0.0, require_all=request["require_all"])
        taken = polled.taken
        uses = None if taken is None else [use for _, use in taken]
        reply = {"uses": uses, "ready": polled.ready, "ended": polled.ended}
        return reply, [group for group, _ in taken or ()]

    def _leave(self, session: str) -> None:
        with self._lock:
            member = self._members.pop(session)
            if session == self._reader:
                self._reader = None
                self._requeue_except([])
            is_unfinished_writer = self._store.writers.get(member) is False
        if is_unfinished_writer:
            self._set_writers({}, without=member)

    def _requeue_except(self, held: Sequence[GroupUse]) -> None:
        if held or self._store.counts().leased:
            self._store.restore(held)

    def _set_writers(self, states: Mapping[str, bool], without: str | None = None) -> None:
        with self._lock:
            writers = {**self._store.writers, **states}
            self._store.set_writers({name: writers[name] for name in writers if name != without})

    def _require_not_replaced(self, session: str) -> None:
        if session in self._replaced:
            raise StoreError(
                "Another process has opened the buffer as its reader, so this one stops. Run only one "
                "trainer per run."
            )


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
        if self._finished:
            raise StoreError("Groups cannot be put into a buffer after `finish` was called on it.")
        sent = groups[: 1 if seconds else _GROUPS_PER_REQUEST]
        contents = [encode(group) for group in sent]
        reply = self._request({"do": "put", "seconds": seconds}, contents)[0]
        return int(reply["put"])

    def take(self, groups: int, seconds: float, *, require_all: bool) -> PollResult:
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
        with self._lock:
            uses = self._leases.oldest(ids)
        self._request({"do": "acknowledge", "uses": uses})
        with self._lock:
            self._leases.remove(uses)

    def discard(self, ids: Sequence[str]) -> None:
        self._request({"do": "discard", "ids": list(ids)})
        with self._lock:
            self._leases.remove(self._leases.newest(set(ids)))

    def finish(self) -> None:
        self._finished = True
        self._request({"do": "finish"})

    def counts(self) -> BufferCounts:
        return BufferCounts(*self._request({"do": "counts"})[0]["counts"])

    def close(self) -> None:
        """Does not wait for a buffer process that has ended."""
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
