"""What the buffer's process answers to explorer and trainer.

A request is JSON, with `do`, the `session` and how many `groups` follow, each as the codec's bytes. So is an
answer: `stranger`, where the session is none of those that have joined this life of the process; `fault`,
which the asker raises; or what was asked for.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from strop.buffer.codec import decode, encode
from strop.buffer.order import Use
from strop.buffer.stock import OwnStock
from strop.errors import StoreError
from strop.types import ExperienceGroup
from strop.workers.line import ANSWER_SECONDS, Line


class Desk:
    """Serves many writers and one reader: a new reader takes the place of the one before."""

    def __init__(self, stock: OwnStock) -> None:
        self._stock = stock
        self._stock.note(stock.writers)
        self._lock = threading.Lock()
        self._members: dict[str, str] = {}
        """The names of those that have joined, by their sessions."""
        self._reader: str | None = None
        """Its session."""
        self._replaced: set[str] = set()

    def serve(self, line: Line) -> None:
        """Answer until the line breaks."""
        while True:
            request = line.receive()
            contents = [line.receive_bytes(limit_seconds=ANSWER_SECONDS) for _ in range(request["groups"])]
            try:
                answer, given = self._answer(request, [decode(content) for content in contents])
            except StoreError as error:
                answer, given = {"fault": str(error)}, []
            line.send({"groups": len(given), **answer}, limit_seconds=ANSWER_SECONDS)
            for group in given:
                line.send_bytes(encode(group), limit_seconds=ANSWER_SECONDS)

    def _answer(
        self, request: dict[str, Any], groups: Sequence[ExperienceGroup]
    ) -> tuple[dict[str, Any], Sequence[ExperienceGroup]]:
        session, stock = request["session"], self._stock
        if request["do"] == "join":
            self._join(request)
            return {}, []
        if session not in self._members:
            self._require_place(session)
            return {"stranger": True}, []
        match request["do"]:
            case "put":
                return {"put": stock.put(groups, request["seconds"])}, []
            case "take":
                return self._take(request)
            case "settle":
                with self._lock:
                    self._require_place(session)
                    stock.settle([(id, use) for id, use in request["uses"]])
            case "discard":
                with self._lock:
                    self._require_place(session)
                    stock.discard(request["ids"])
            case "finish":
                self._note({self._members[session]: True})
            case "counts":
                counts = stock.counts()
                return {"counts": [counts.queued, counts.claimed, counts.done, counts.evicted]}, []
            case "leave":
                self._leave(session)
        return {}, []

    def _join(self, request: dict[str, Any]) -> None:
        """Under a new session; the one that it had before is over."""
        session, member = request["session"], request["member"]
        with self._lock:
            self._members.pop(request["before"], None)
            self._members[session] = member
            if request["reads"]:
                if self._reader is not None and self._reader != request["before"]:
                    self._replaced.add(self._reader)
                    self._members.pop(self._reader, None)
                self._reader = session
                self._give_back_all_but([(id, use) for id, use in request["held"]])
        if request["writes"]:
            self._note({member: request["finished"]})

    def _take(self, request: dict[str, Any]) -> tuple[dict[str, Any], Sequence[ExperienceGroup]]:
        """The wait is before the lock, so that another reader can join meanwhile."""
        count = request["count"]
        self._stock.wait_for(count, request["seconds"])
        with self._lock:
            if request["session"] != self._reader:
                self._require_place(request["session"])
                return {"stranger": True}, []
            look = self._stock.take(count, 0.0, patient=request["patient"])
        taken = look.taken
        uses = None if taken is None else [use for _, use in taken]
        return {"uses": uses, "ready": look.ready, "ended": look.ended}, [group for group, _ in taken or ()]

    def _leave(self, session: str) -> None:
        with self._lock:
            member = self._members.pop(session)
            if session == self._reader:
                self._reader = None
                self._give_back_all_but([])
            left = self._stock.writers.get(member) is False
        if left:
            self._note({}, without=member)

    def _give_back_all_but(self, held: Sequence[Use]) -> None:
        if held or self._stock.counts().claimed:
            self._stock.restore(held)

    def _note(self, states: Mapping[str, bool], without: str | None = None) -> None:
        with self._lock:
            writers = {**self._stock.writers, **states}
            self._stock.note({name: writers[name] for name in writers if name != without})

    def _require_place(self, session: str) -> None:
        if session in self._replaced:
            raise StoreError(
                "Another process has opened the buffer as its reader, so this one stops. Let only one "
                "trainer of a run be at work."
            )
