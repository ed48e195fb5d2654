"""Workers that score answers side by side; what breaks one answer leaves the others alone."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import wait

from strop.errors import RewardError
from strop.rewards.function import Function
from strop.rewards.process import Process
from strop.rewards.signature import Answer, Score
from strop.rewards.worker import Outcome

START_SECONDS = 300.0
"""A worker that has not loaded its functions by then is given up; a user's file may import much."""
GRACE_SECONDS = 5.0
"""A worker ends itself at the time limit; one that could not (stopped, say) is killed so much later."""
_LARGEST_CHUNK = 64
_MOST_LOSSES = 10
"""Workers that may die between answers in one job, killed from outside, before it is given up."""


@dataclass(frozen=True, slots=True)
class Broken:
    """What went wrong with one answer, and in which function."""

    function: str
    what: str


Scores = tuple[Score, ...]
"""What each function made of one answer, in their order."""


class Pool:
    """Runs functions on answers. Workers start with the first answers, and are replaced when they die.

    For one thread at a time; `Scorer` sees to that.
    """

    def __init__(self, functions: Sequence[Function], *, workers: int, timeout_seconds: float) -> None:
        self._functions = tuple(functions)
        self._size = workers
        self._timeout_seconds = timeout_seconds
        self._workers: list[_Worker] = []

    def run(self, answers: Sequence[Answer]) -> list[Scores | Broken]:
        """All functions on each answer, in the order of the answers whatever the timing.

        An answer on which a function raises, hangs or ends its process is Broken, and it alone.
        Raises RewardError when the workers cannot load the functions.
        """
        job = _Job(answers)
        try:
            while not job.is_done():
                self._hire(len(job.waiting))
                for worker in tuple(self._workers):
                    if worker.has_taken and not worker.chunk and job.waiting:
                        self._give(worker, job)
                self._listen(job)
        except BaseException:
            self.close()  # what is under way belongs to nobody any more
            raise
        return [job.results[i] for i in range(len(answers))]

    def close(self) -> None:
        """End all workers at once, and whatever they have started."""
        for worker in self._workers:
            worker.process.end()
        self._workers = []

    def _hire(self, waiting: int) -> None:
        unoccupied = sum(not worker.chunk for worker in self._workers)
        for _ in range(min(self._size - len(self._workers), waiting - unoccupied)):
            process = Process(self._functions, self._timeout_seconds)
            self._workers.append(_Worker(process, time.monotonic() + START_SECONDS))

    def _give(self, worker: _Worker, job: _Job) -> None:
        """Large chunks first and ever smaller ones, so that all workers finish at about the same time."""
        size = min(_LARGEST_CHUNK, -(-len(job.waiting) // (2 * self._size)))
        chunk = [job.waiting.popleft() for _ in range(size)]
        worker.chunk.extend(chunk)
        worker.has_taken = False
        self._extend_deadline(worker)
        if not worker.process.send([job.answers[i] for i in chunk]):
            self._bury(worker, job)

    def _listen(self, job: _Job) -> None:
        """Wait for news of the workers that owe some, as long as the first may still take."""
        busy = [worker for worker in self._workers if worker.chunk or not worker.has_taken]
        if not busy:
            return
        patience = min(worker.deadline for worker in busy) - time.monotonic()
        heard = wait([worker.process.connection for worker in busy], max(0.0, patience))
        for worker in busy:
            if worker.process.connection in heard:
                self._hear(worker, job)
            elif time.monotonic() > worker.deadline:
                self._bury(worker, job)

    def _hear(self, worker: _Worker, job: _Job) -> None:
        try:
            message = worker.process.connection.recv()
        except (EOFError, ConnectionError):
            self._bury(worker, job)
            return
        self._extend_deadline(worker)
        if worker.has_taken:
            self._note(worker, message, job)
        elif message is None:
            worker.has_taken = worker.is_up = True
        else:
            raise RewardError(message)

    def _note(self, worker: _Worker, outcome: Outcome, job: _Job) -> None:
        if isinstance(outcome, str):
            job.results[worker.chunk[0]] = Broken(self._functions[len(worker.scores)].name, outcome)
        else:
            worker.scores.append(outcome)
            if len(worker.scores) < len(self._functions):
                return
            job.results[worker.chunk[0]] = tuple(worker.scores)
        worker.chunk.popleft()
        worker.scores.clear()

    def _bury(self, worker: _Worker, job: _Job) -> None:
        """Only the answer that it was at is broken; the rest of its chunk goes to others."""
        late = time.monotonic() > worker.deadline
        limit = self._timeout_seconds if worker.is_up else START_SECONDS
        self._workers.remove(worker)
        cause = worker.process.end()
        if late:
            cause = f"took longer than {limit:g} s and was killed"
        if not worker.is_up:
            names = ", ".join(function.name for function in self._functions)
            raise RewardError(f"The process that was to score answers, while it loaded {names}, {cause}.")
        if worker.has_taken:
            name = self._functions[len(worker.scores)].name
            job.results[worker.chunk.popleft()] = Broken(name, cause)
        else:  # it was killed before it began: no answer's fault
            job.losses += 1
            if job.losses > _MOST_LOSSES:
                raise RewardError(
                    f"{job.losses} processes that score answers died between two; the last {cause}."
                )
        job.waiting.extendleft(reversed(worker.chunk))

    def _extend_deadline(self, worker: _Worker) -> None:
        worker.deadline = time.monotonic() + self._timeout_seconds + GRACE_SECONDS


@dataclass(eq=False, slots=True)
class _Worker:
    """A process, and what it has in hand."""

    process: Process
    deadline: float
    """By when something must be heard of it."""
    is_up: bool = False
    """It has loaded the functions."""
    has_taken: bool = False
    """It has said that it took up what was sent last."""
    chunk: deque[int] = field(default_factory=deque)
    """Answers it has been given and has not finished."""
    scores: list[Score] = field(default_factory=list)
    """Of the first of them, by the functions that are through."""


class _Job:
    """The answers of one `Pool.run`, by their place."""

    def __init__(self, answers: Sequence[Answer]) -> None:
        self.answers = answers
        self.waiting = deque(range(len(answers)))
        self.results: dict[int, Scores | Broken] = {}
        self.losses = 0

    def is_done(self) -> bool:
        return len(self.results) == len(self.answers)
