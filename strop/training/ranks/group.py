"""A group of ranks, seen from the first of them, which is the run's own process; the others are workers."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

from torch import distributed

from strop.errors import RankLost, TrainingError, WorkerDied
from strop.protocols import WrittenFile
from strop.training.ranks.address import meeting_on_cluster
from strop.training.ranks.follower import follow
from strop.training.ranks.member import Member
from strop.training.ranks.messages import Call, Done, Failed, Make, Save, Setting
from strop.training.ranks.part import gather
from strop.workers.start import HERE, OnRay, Place, start_worker

T = TypeVar("T")

_LAST_WORDS_SECONDS = 5.0
"""So long after this rank's fault another may take to say what came first."""


class RankGroup:
    """Ranks that hold objects under names, one of each on every rank, and call them together."""

    def __init__(self, ranks: int, device: Literal["cpu", "cuda"], place: Place = HERE) -> None:
        """Start the others in that kind of place, and join them.

        Raises TrainingError where one of them cannot join, PlacementError where there is no room for one.
        """
        self.ranks = ranks
        self._followers: list[_Follower] = []
        self._folder = tempfile.TemporaryDirectory(prefix="strop-ranks-")
        alone = isinstance(place, OnRay)  # Ray shows each its own GPU, and no other
        meeting = meeting_on_cluster() if alone else f"file://{self._folder.name}/store"
        settings = [Setting(rank, ranks, device, 0 if alone else rank, meeting) for rank in range(ranks)]
        try:
            self._start(place)
            with self._meanwhile(settings[1:]) as nodes:
                self._member = Member(settings[0])
        except BaseException:
            self.close()
            raise
        self.device = self._member.device
        self.nodes: tuple[str, ...] = (self._member.node, *nodes)
        """Where each rank is."""

    def make(self, name: str, build: Callable[[], T]) -> T:
        """Build an object on every rank, from then on called by its name; returns this rank's."""
        with self._meanwhile([Make(name, build)] * (self.ranks - 1)):
            return self._member.make(name, build)

    @contextmanager
    def others(self, name: str, *calls: Callable[[Any], Any]) -> Iterator[list[Any]]:
        """While this rank does its part inside, each other one calls its own object, by the one call that is
        given or by one of its own; at the end their results are in the list.

        Raises what another rank raised, in place of what this one suffered from it.
        """
        each = calls if len(calls) == self.ranks - 1 else calls * (self.ranks - 1)
        with self._meanwhile([Call(name, call) for call in each]) as results:
            yield results

    def begin(self, save: Save) -> Callable[[], Mapping[str, WrittenFile]]:
        """Begin to write a checkpoint on all ranks; what is returned ends it, in any thread, and says what
        is there. Raises TrainingError where a rank has failed, and OSError where the disk did not take it."""
        with self._meanwhile([save] * (self.ranks - 1)):
            write_own = self._member.begin(save)

        def write() -> Mapping[str, WrittenFile]:
            write_own()
            return gather(save, self._member.store, self._check)

        return write

    def close(self) -> None:
        """End the others, whatever they are doing: nothing of theirs is to be kept."""
        for follower in self._followers:
            follower.end()
        if distributed.is_initialized():
            distributed.destroy_process_group()
        self._folder.cleanup()

    def _check(self) -> None:
        for follower in self._followers:
            follower.check()

    def _start(self, place: Place) -> None:
        """All at once, since a node may be long in coming up."""
        with ThreadPoolExecutor(self.ranks) as pool:
            started = [pool.submit(_Follower, rank, place) for rank in range(1, self.ranks)]
        self._followers = [follower.result() for follower in started if follower.exception() is None]
        for follower in started:
            follower.result()

    @contextmanager
    def _meanwhile(self, messages: Sequence[object]) -> Iterator[list[Any]]:
        results: list[Any] = []
        for follower, message in zip(self._followers, messages, strict=True):
            follower.send(message)
        try:
            yield results
        except RuntimeError as error:  # what torch raises in a collective that another rank has left
            for follower in self._followers:
                follower.raise_last_words(error)
            raise
        results.extend(follower.result() for follower in self._followers)


class _Follower:
    """One of the other ranks."""

    def __init__(self, rank: int, place: Place) -> None:
        self._name = f"Rank {rank} of the trainer"
        self._worker = start_worker(f"rank-{rank}", follow, place)

    def send(self, message: object) -> None:
        """Raises TrainingError where nobody is there any more."""
        try:
            self._worker.send(message)
        except WorkerDied as death:
            raise self._lost(death) from None

    def result(self) -> Any:
        """Of the oldest message not yet answered. Raises what it raised, or TrainingError if it died."""
        try:
            answer: Done | Failed = self._worker.receive()
        except WorkerDied as death:
            raise self._lost(death) from None
        if isinstance(answer, Failed):
            if answer.kind is None:
                raise TrainingError(f"{self._name} failed:\n{answer.message}")
            raise answer.kind(answer.message)
        return answer.result

    def check(self) -> None:
        """Raises TrainingError where it has ended."""
        try:
            self._worker.check()
        except WorkerDied as death:
            raise self._lost(death) from None

    def raise_last_words(self, cause: Exception) -> None:
        """Raise what it failed of, if it failed."""
        if self._worker.poll(_LAST_WORDS_SECONDS):
            try:
                self.result()
            except Exception as error:
                raise error from cause

    def end(self) -> None:
        """Kill it."""
        self._worker.end()

    def _lost(self, death: WorkerDied) -> TrainingError:
        return (RankLost if death.killed else TrainingError)(
            f"{self._name} ended {death.how}. A signal 9 that nobody sent is the kernel's, for want of "
            "memory."
        )
