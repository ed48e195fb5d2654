"""The ranks of a trainer, as their controller sees them: the first rank is the controller's own process."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Literal

from torch import distributed

from strop.errors import RankLostError, TrainingError, WorkerDiedError
from strop.protocols import FileChecksum
from strop.training.parallel.mesh import ParallelDims
from strop.training.ranks.messages import RankMessage, RankResult, RankSpec, SaveCheckpoint
from strop.training.ranks.rank_worker import RankWorker, run_rank_worker
from strop.training.ranks.rendezvous import cluster_init_method
from strop.training.ranks.sharded_save import gather_written_files
from strop.workers.messages import RemoteFailure
from strop.workers.start import LOCAL, RayPlacement, WorkerPlacement, start_worker

_ERROR_GRACE_SECONDS = 5.0
"""Time, after a collective operation fails on the first rank, in which another rank's error is waited for."""


class RankGroup:
    """Starts the ranks and sends messages to them; every rank runs its message at the same time."""

    def __init__(
        self, dims: ParallelDims, device: Literal["cpu", "cuda"], placement: WorkerPlacement = LOCAL
    ) -> None:
        """Starts the other ranks at `placement` and joins them.

        Raises TrainingError for a rank that cannot join, and PlacementError where no node can hold one.
        """
        self.dims = dims
        self._remote: list[_RemoteRank] = []
        self._folder = tempfile.TemporaryDirectory(prefix="strop-ranks-")
        on_ray = isinstance(placement, RayPlacement)  # an actor sees its own GPU only
        init_method = cluster_init_method() if on_ray else f"file://{self._folder.name}/store"
        specs = [
            RankSpec(rank, dims, device, 0 if on_ray else rank, init_method) for rank in range(dims.ranks)
        ]
        try:
            self._start(placement)
            with self._on_others(specs[1:]) as nodes:
                self.worker = RankWorker(specs[0])
        except BaseException:
            self.close()
            raise
        self.device = self.worker.device
        self.nodes: tuple[str, ...] = (self.worker.node, *nodes)
        """Node of each rank."""

    def run(self, message: RankMessage) -> list[Any]:
        """Run a message on every rank; the results by rank."""
        return self.run_each([message] * self.dims.ranks)

    def run_each(self, messages: Sequence[RankMessage]) -> list[Any]:
        """Run a message of its own on every rank; the results by rank.

        If a rank raises an error, that error is raised, rather than the failure that it causes in others.
        """
        with self._on_others(messages[1:]) as results:
            own = messages[0].run(self.worker)
        return [own, *results]

    @contextmanager
    def on_others(self, message: RankMessage) -> Iterator[None]:
        """While the other ranks run a message, the first rank runs the body of the context."""
        with self._on_others([message] * len(self._remote)):
            yield

    def begin_save(self, save: SaveCheckpoint) -> Callable[[], Mapping[str, FileChecksum]]:
        """Start to write a checkpoint on all ranks.

        The returned function finishes the write, in any thread, and returns the written files. It raises
        TrainingError for a failed rank, and OSError where a disk refused a file.
        """
        with self._on_others([save] * len(self._remote)):
            write_own = self.worker.begin_save(save)

        def write() -> Mapping[str, FileChecksum]:
            write_own()
            return gather_written_files(save, self.worker.store, self._check)

        return write

    def close(self) -> None:
        """Kill the other ranks; their state is discarded."""
        for rank in self._remote:
            rank.kill()
        if distributed.is_initialized():
            distributed.destroy_process_group()
        self._folder.cleanup()

    def _check(self) -> None:
        for rank in self._remote:
            rank.check()

    def _start(self, placement: WorkerPlacement) -> None:
        """Start all at the same time, since a node can take long to start one."""
        others = range(1, self.dims.ranks)
        with ThreadPoolExecutor(self.dims.ranks) as pool:
            started = [pool.submit(_RemoteRank, rank, placement) for rank in others]
        self._remote = [rank.result() for rank in started if rank.exception() is None]
        for rank in started:
            rank.result()

    @contextmanager
    def _on_others(self, messages: Sequence[object]) -> Iterator[list[Any]]:
        results: list[Any] = []
        for rank, message in zip(self._remote, messages, strict=True):
            rank.send(message)
        try:
            yield results
        except RuntimeError as error:  # raised by torch in a collective operation that another rank has left
            for rank in self._remote:
                rank.raise_own_error(error)
            raise
        results.extend(rank.result() for rank in self._remote)


class _RemoteRank:
    """A rank in another process."""

    def __init__(self, rank: int, placement: WorkerPlacement) -> None:
        self._name = f"Rank {rank} of the trainer"
        self._worker = start_worker(f"rank-{rank}", run_rank_worker, placement)

    def send(self, message: object) -> None:
        """Raises TrainingError if the rank has ended."""
        try:
            self._worker.send(message)
        except WorkerDiedError as death:
            raise self._lost(death) from None

    def result(self) -> Any:
        """Result of the oldest message without one. Raises its error, or TrainingError if the rank has ended."""
        try:
            reply: RankResult | RemoteFailure = self._worker.receive()
        except WorkerDiedError as death:
            raise self._lost(death) from None
        if isinstance(reply, RemoteFailure):
            raise reply.to_error(self._name, TrainingError)
        return reply.result

    def check(self) -> None:
        """Raises TrainingError if the rank has ended."""
        try:
            self._worker.check_alive()
        except WorkerDiedError as death:
            raise self._lost(death) from None

    def raise_own_error(self, cause: Exception) -> None:
        """Raise the rank's error, if it has failed."""
        if self._worker.poll(_ERROR_GRACE_SECONDS):
            try:
                self.result()
            except Exception as error:
                raise error from cause

    def kill(self) -> None:
        """Kill the process."""
        self._worker.kill()

    def _lost(self, death: WorkerDiedError) -> TrainingError:
        return (RankLostError if death.killed else TrainingError)(
            f"{self._name} ended {death.exit_reason}. If no process sent signal 9, the kernel did, because the "
            "machine ran out of memory."
        )
