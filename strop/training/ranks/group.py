"""The ranks of a trainer, as their controller sees them: the first rank is the controller's own process."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Literal, assert_never

import torch
from torch import distributed

from strop.config.schema.trainer import DeepSpeedEngineConfig, Fsdp2EngineConfig, RankNetworkConfig
from strop.errors import TrainingError
from strop.models.dtensor import forget_meshes
from strop.protocols import FileChecksum
from strop.training.ranks.messages import RankMessage, RankSpec, SaveCheckpoint
from strop.training.ranks.rank_worker import RankWorker
from strop.training.ranks.remote_rank import RankWatch, RemoteRank, check_replies, gather_results, raise_cause
from strop.training.ranks.rendezvous import open_rendezvous
from strop.training.ranks.sharded_save import gather_written_files
from strop.training.zero.library import close_deepspeed
from strop.workers.start import LOCAL, AgentPlacement, LocalPlacement, RankPlacement, RayPlacement
from strop.workers.waiting import call_with_checks


def _device_indices(placement: RankPlacement, ranks: int) -> list[int]:
    """Index of each rank's GPU among those that its process sees."""
    match placement:
        case LocalPlacement():
            return list(range(ranks))
        case RayPlacement():
            return [0] * ranks  # an actor sees its own GPU only
        case AgentPlacement():
            others = [placement.workers[f"rank-{rank}"].local_rank for rank in range(1, ranks)]
            return [placement.local_rank, *others]
        case _:
            assert_never(placement)


class RankGroup:
    """Starts the ranks and sends messages to them; every rank runs its message at the same time.

    A rank that dies or hangs is noticed at any time, also while the others wait for it. It raises RankLostError.
    """

    @classmethod
    def of(
        cls,
        section: Fsdp2EngineConfig | DeepSpeedEngineConfig,
        device: Literal["cpu", "cuda"],
        placement: RankPlacement,
    ) -> RankGroup:
        """The ranks of a training engine. Raises as the constructor does."""
        return cls(
            section.ranks,
            device,
            placement,
            hang_timeout_seconds=section.hang_timeout_seconds,
            network=section.network,
        )

    def __init__(
        self,
        ranks: int,
        device: Literal["cpu", "cuda"],
        placement: RankPlacement = LOCAL,
        *,
        hang_timeout_seconds: float = 600.0,
        network: RankNetworkConfig = RankNetworkConfig(),  # noqa: B008  (frozen)
        threads: int | None = None,
    ) -> None:
        """Starts the other ranks at `placement` and joins them.

        Raises TrainingError for a rank that cannot join or dies before, and PlacementError where no node can hold one.
        """
        self.ranks = ranks
        """Number of ranks, with the first one."""
        self._remote: list[RemoteRank] = []
        self._watch: RankWatch | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="strop-ranks-")
        try:
            with open_rendezvous(placement, network, self._folder.name) as rendezvous:
                self._start(placement, hang_timeout_seconds)
                self._watch = RankWatch(self._remote)
                specs = [
                    RankSpec(
                        rank,
                        ranks,
                        device,
                        index,
                        rendezvous.init_method,
                        hang_timeout_seconds,
                        network,
                        threads,
                    )
                    for rank, index in enumerate(_device_indices(placement, ranks))
                ]
                with self._on_others(specs[1:]) as nodes:
                    self.worker = call_with_checks(
                        lambda: RankWorker(specs[0], rendezvous.listening),
                        lambda: check_replies(self._remote),
                    )
        except BaseException:
            self.close()
            raise
        if device == "cuda":
            torch.cuda.set_device(self.worker.device)  # which applies to one thread
        self.device = self.worker.device
        self.nodes: tuple[str, ...] = (self.worker.node, *nodes)
        """Node of each rank."""

    def run(self, message: RankMessage) -> list[Any]:
        """Run a message on every rank; the results by rank."""
        return self.run_each([message] * self.ranks)

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
        if self._watch is not None:
            self._watch.close()
        for rank in self._remote:
            rank.kill()
        close_deepspeed()
        forget_meshes()
        if distributed.is_initialized():
            distributed.destroy_process_group()
        self._folder.cleanup()

    def _check(self) -> None:
        for rank in self._remote:
            rank.check()

    def _start(self, placement: RankPlacement, hang_timeout_seconds: float) -> None:
        """Start all at the same time, since a node can take long to start one."""
        others = range(1, self.ranks)
        with ThreadPoolExecutor(self.ranks) as pool:
            started = [pool.submit(RemoteRank, rank, placement, hang_timeout_seconds) for rank in others]
        self._remote = [rank.result() for rank in started if rank.exception() is None]
        for rank in started:
            rank.result()

    @contextmanager
    def _on_others(self, messages: Sequence[object]) -> Iterator[list[Any]]:
        results: list[Any] = []
        try:
            for rank, message in zip(self._remote, messages, strict=True):
                rank.send(message)
        except TrainingError as error:
            raise_cause(self._remote, error)
        try:
            yield results
        except (
            RuntimeError,
            ValueError,
        ) as error:  # as torch raises in a collective operation after a rank's end
            raise_cause(self._remote, error)
        results.extend(gather_results(self._remote))
