"""A stock in the buffer's process, asked over lines: each thread has one while it asks."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strop.buffer.claims import Claims
from strop.buffer.codec import decode, encode
from strop.buffer.stock import Look
from strop.buffer.wait import Check, Wait, never_stop
from strop.errors import StoreError
from strop.protocols import BufferCounts
from strop.types import ExperienceGroup
from strop.workers.address import Address
from strop.workers.line import ANSWER_SECONDS, Line, LineBroken, reach

OUTAGE_SECONDS = 120.0
"""Longest wait for a buffer's process that is gone, and should be started again."""
_RETRY_SECONDS = 0.2
_AT_ONCE = 16
"""So many groups are sent in one request; while there is no room, one."""


@dataclass(frozen=True, slots=True)
class Member:
    """What a process does with the buffer."""

    name: str
    reads: bool
    writes: bool


class RemoteStock:
    """A `Stock`. It may be used by many threads, and is opened anew in each process."""

    def __init__(self, address: Path, member: Member, check: Check) -> None:
        """`address` is the file in which the buffer's process says where it listens."""
        self._address = address
        self._member = member
        self._check = check
        self._lock = threading.RLock()
        self._session = ""
        """Under which it has joined; a new one each time."""
        self._joined = False
        self._held = Claims()
        self._lines: list[Line] = []
        """Those that nobody uses now."""
        self._finished = False
        self._closed = False
        self._ask({"do": "counts"})

    def put(self, groups: Sequence[ExperienceGroup], seconds: float) -> int:
        """See `Stock`."""
        if self._finished:
            raise StoreError("Groups are put into a buffer after `finish` was said of it.")
        sent = groups[: 1 if seconds else _AT_ONCE]
        contents = [encode(group) for group in sent]
        answer = self._ask({"do": "put", "seconds": seconds}, contents)[0]
        return int(answer["put"])

    def take(self, groups: int, seconds: float, *, patient: bool) -> Look:
        """See `Stock`."""
        request = {"do": "take", "count": groups, "seconds": seconds, "patient": patient}
        while True:
            answer, contents, session = self._ask(request)
            if answer["uses"] is None:
                return Look(None, answer["ready"], answer["ended"])
            taken = list(zip(map(decode, contents), answer["uses"], strict=True))
            with self._lock:
                if session == self._session:
                    self._held.add((group.id, use) for group, use in taken)
                    return Look(taken, answer["ready"], answer["ended"])
            # another thread has joined anew meanwhile, and did not name these: they went back

    def acknowledge(self, ids: Sequence[str]) -> None:
        """See `strop.protocols.Buffer`."""
        with self._lock:
            uses = self._held.oldest(ids)
        self._ask({"do": "settle", "uses": uses})
        with self._lock:
            self._held.remove(uses)

    def discard(self, ids: Sequence[str]) -> None:
        """See `strop.protocols.Buffer`."""
        self._ask({"do": "discard", "ids": list(ids)})
        with self._lock:
            self._held.remove(self._held.newest(set(ids)))

    def finish(self) -> None:
        """See `strop.protocols.Buffer`."""
        self._finished = True
        self._ask({"do": "finish"})

    def counts(self) -> BufferCounts:
        """See `strop.protocols.Buffer`."""
        return BufferCounts(*self._ask({"do": "counts"})[0]["counts"])

    def close(self) -> None:
        """See `strop.protocols.Buffer`. Where the process is gone, there is nobody to tell."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(LineBroken):
            self._exchange({"do": "leave", "session": self._session}, [])
        for line in self._lines:
            line.close()

    def _ask(
        self, request: dict[str, Any], contents: Sequence[bytes] = ()
    ) -> tuple[dict[str, Any], list[bytes], str]:
        """Again and again until it is answered: the answer, the groups that came with it, and the session
        in which it was asked. Raises `StoreError` for a fault, and where nobody answers for too long."""
        wait = Wait(OUTAGE_SECONDS, self._check)
        while True:
            if self._closed:
                raise StoreError("The buffer is closed.")
            session = self._session
            try:
                session = self._join()
                answer, given = self._exchange({**request, "session": session}, contents)
            except LineBroken as error:
                self._lost(session)
                self._pause(wait, error)
                continue
            except BaseException:
                self._lost(session)  # of what the answer would have said, nothing is known
                raise
            if "fault" in answer:
                raise StoreError(answer["fault"])
            if "stranger" not in answer:
                return answer, given, session
            self._lost(session)

    def _join(self) -> str:
        """The session, a new one if there is none. Joining anew gives back what this end knows nothing of."""
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
                    "held": self._held.all(),
                    "finished": self._finished,
                }
                answer, _ = self._exchange(request, [])
                if "fault" in answer:
                    raise StoreError(answer["fault"])
                self._session, self._joined = new, True
            return self._session

    def _lost(self, session: str) -> None:
        """An answer to a request of this session."""
        with self._lock:
            if session == self._session:
                self._joined = False

    def _exchange(
        self, request: dict[str, Any], contents: Sequence[bytes]
    ) -> tuple[dict[str, Any], list[bytes]]:
        """One request and its answer. Raises `LineBroken` where there is none."""
        line = self._line()
        try:
            line.send({"groups": len(contents), **request}, limit_seconds=ANSWER_SECONDS)
            for content in contents:
                line.send_bytes(content, limit_seconds=ANSWER_SECONDS)
            answer = line.receive(limit_seconds=ANSWER_SECONDS)
            given = [line.receive_bytes(limit_seconds=ANSWER_SECONDS) for _ in range(answer["groups"])]
        except BaseException:
            line.close()
            raise
        with self._lock:
            self._lines.append(line)
        return answer, given

    def _line(self) -> Line:
        with self._lock:
            if self._lines:
                return self._lines.pop()
        line = reach(Address.load(self._address), never_stop)  # no answer takes longer than a second
        if line is None:
            raise LineBroken
        return line

    def _pause(self, wait: Wait, error: LineBroken) -> None:
        with self._lock:
            for line in self._lines:  # they lead to the same process
                line.close()
            self._lines = []
        if wait.left <= 0:
            raise StoreError(
                f"The buffer's process has not answered for {wait.seconds:.0f} s, and was not started again. "
                "Start the run again: it goes on from its last state, and nothing in the buffer is lost."
            ) from error
        time.sleep(wait.slice("the buffer's process", _RETRY_SECONDS))
