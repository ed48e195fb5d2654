"""The server of a buffer process, and its protocol.

A request is JSON with `do`, the `session`, and the number of `groups` that follow, each as the codec's
bytes. A reply has the same form: `unknown_session` if the session has not joined this process, `error`
with a text that the client raises, or the result.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from strop.buffer.codec import decode, encode
from strop.buffer.queue_policy import GroupUse
from strop.buffer.store import InMemoryStore
from strop.errors import StoreError
from strop.types import ExperienceGroup
from strop.workers.connection import PEER_TIMEOUT_SECONDS, SocketConnection


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
