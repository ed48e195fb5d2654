"""The ranks of a trainer, as their controller sees them: the first rank is the controller's own process."""

from __future__ import annotations

import re
import secrets
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Concatenate, Literal, NoReturn, assert_never

import torch
from torch import distributed
from torch.distributed.distributed_c10d import _abort_process_group

from strop.config.schema.record import SaveConcurrency
from strop.config.schema.trainer import DeepSpeedEngineConfig, Fsdp2EngineConfig, RankNetworkConfig
from strop.errors import (
    NodeLostError,
    RankLostError,
    StropError,
    TrainingError,
    WorkerDiedError,
    see_troubleshooting,
)
from strop.models.dtensor import forget_meshes
from strop.protocols import FileChecksum
from strop.training.checkpoints.file_writer import write_order, writes_in_parallel
from strop.training.parallel.zero import close_deepspeed
from strop.training.ranks.process import RankCall, RankFailure, RankResult, join_ranks, run_rank
from strop.training.ranks.rank import A, P, Rank, T
from strop.training.ranks.rendezvous import RankSpec, open_rendezvous
from strop.training.ranks.sharded_save import ShardedSave, gather_written_files
from strop.workers.start import (
    LOCAL,
    AgentPlacement,
    LocalPlacement,
    RankPlacement,
    RayPlacement,
    start_worker,
)
from strop.workers.waiting import call_with_checks
from strop.workers.worker import SilenceClock

_POLL_SECONDS = 0.2
_WATCH_SECONDS = 1.0
"""Interval at which ranks are watched while the first rank is in a collective operation."""
_CAUSE_SECONDS = 5.0
"""Longest wait, after a collective operation has failed, for the error of the rank that caused it."""
_SAME_NODE_SECONDS = 2.0
"""Longest time between the first and the last rank of a lost node that notices it."""
_TIMEOUT = re.compile("timed? ?out", re.IGNORECASE)
"""In the message of a collective operation in which another rank did not take part in time."""
_RESUME = "The same command resumes from the last checkpoint."


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
    """Starts the ranks and calls operations on them; every rank runs the same one at the same time.

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
        self.has_failed = False
        """Whether the ranks take no further operation, because one has failed or they are closed."""
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
                    self.first = call_with_checks(
                        lambda: join_ranks(specs[0], rendezvous.listening),
                        lambda: _check_replies(self._remote),
                    )
                    """The first rank, in this process."""
        except BaseException:
            self.close()
            raise
        if device == "cuda":
            torch.cuda.set_device(self.first.device)  # which applies to one thread
        self.device = self.first.device
        self.nodes: tuple[str, ...] = (self.first.node, *nodes)
        """Node of each rank."""

    def run(self, operation: Callable[Concatenate[Rank, P], T], *args: P.args, **kwargs: P.kwargs) -> list[T]:
        """Run an operation on every rank with the same arguments; the results by rank.

        If a rank raises an error, that error is raised, rather than the failure that it causes in others.
        """
        return self._run([RankCall(operation, args, kwargs)] * self.ranks)

    def run_on_model(
        self, name: str, operation: Callable[Concatenate[Any, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> list[T]:
        """As `run`, an operation of each rank's model of this name, or of its shard."""
        return self._run([RankCall(operation, args, kwargs, model=name)] * self.ranks)

    def run_each(
        self,
        operation: Callable[Concatenate[Rank, A, P], T],
        own: Sequence[A],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> list[T]:
        """As `run`, with a first argument for each rank of its own."""
        return self._run([RankCall(operation, (each, *args), kwargs) for each in own])

    @contextmanager
    def on_others(
        self, operation: Callable[Concatenate[Rank, P], object], *args: P.args, **kwargs: P.kwargs
    ) -> Iterator[None]:
        """While the other ranks run an operation, the first rank runs the body of the context."""
        with self._on_others([RankCall(operation, args, kwargs)] * len(self._remote)):
            yield

    def snapshot(self, name: str, concurrency: SaveConcurrency) -> ShardedSnapshot:
        """The state of a model, for a checkpoint; `concurrency` says which ranks and threads write at a time."""
        return ShardedSnapshot(self, name, concurrency)

    def begin_save(self, save: ShardedSave) -> Callable[[], Mapping[str, FileChecksum]]:
        """Start to write a checkpoint on all ranks.

        The returned function finishes the write, in any thread, and returns the written files. It raises
        TrainingError for a failed rank, and OSError where a disk refused a file.
        """
        with self.on_others(Rank.save, save):
            write_own = self.first.begin_save(save)

        def write() -> Mapping[str, FileChecksum]:
            write_own()
            assert self.first.store is not None
            return gather_written_files(save, self.first.store, self._check)

        return write

    def close(self) -> None:
        """Kill the other ranks; their state is discarded."""
        self.has_failed = True
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

    def _run(self, calls: Sequence[RankCall]) -> list[Any]:
        with self._on_others(calls[1:]) as results:
            own = calls[0](self.first)
        return [own, *results]

    @contextmanager
    def _on_others(self, messages: Sequence[object]) -> Iterator[list[Any]]:
        results: list[Any] = []
        self.has_failed = True
        try:
            for rank, message in zip(self._remote, messages, strict=True):
                rank.send(message)
        except TrainingError as error:
            _raise_cause(self._remote, error)
        try:
            yield results
        except (
            RuntimeError,
            ValueError,
        ) as error:  # as torch raises in a collective operation after a rank's end
            _raise_cause(self._remote, error)
        results.extend(_gather_results(self._remote))
        self.has_failed = False


@dataclass(frozen=True, slots=True)
class ShardedSnapshot:
    """The current state of a model on the ranks; no rank ever holds another's shard."""

    group: RankGroup
    model: str
    """Name of the model on the ranks."""
    save_concurrency: SaveConcurrency
    """Which ranks and threads write at the same time."""

    def begin_write(self, folder: Path, *, copied: bool = False) -> Callable[[], Mapping[str, FileChecksum]]:
        """Start the write on all ranks; the returned function finishes it, as that of `RankGroup.begin_save`."""
        save = ShardedSave(
            save_id=secrets.token_hex(8),
            folder=folder.absolute(),
            model=self.model,
            copy_tensors=copied,
            parallel_files=writes_in_parallel(self.save_concurrency),
            write_order=write_order(self.save_concurrency, self.group.nodes),
        )
        return self.group.begin_save(save)


class RemoteRank:
    """A rank in another process, which sends one reply to each message."""

    def __init__(self, rank: int, placement: RankPlacement, hang_timeout_seconds: float) -> None:
        self.rank = rank
        self.hang_timeout_seconds = hang_timeout_seconds
        """Longest silence of the process, and longest time for which the other ranks wait for this one."""
        self._name = f"Rank {rank} of the trainer"
        self._worker = start_worker(f"rank-{rank}", run_rank, placement)
        self._hang: RankLostError | None = None
        self.node_loss: NodeLostError | None = None
        """The loss of its node, if that ended it."""
        self._reply: RankResult | StropError | None = None
        self.is_consequence = False
        """Whether the error in its reply may be the consequence of another rank's end."""

    def send(self, message: object) -> None:
        """Raises TrainingError if the rank has ended."""
        try:
            self._worker.send(message)
        except WorkerDiedError as death:
            raise self._lost(death) from None

    def reply(self, seconds: float) -> RankResult | StropError | None:
        """The reply to the last message, or the error that ended the rank; None if neither comes in time."""
        if self._reply is None and self._worker.poll(seconds):
            try:
                reply: RankResult | RankFailure = self._worker.receive()
            except WorkerDiedError as death:
                self._reply = self._lost(death)
            else:
                if isinstance(reply, RankFailure):
                    self.is_consequence = reply.is_consequence
                    self._reply = reply.failure.to_error(self._name, TrainingError)
                else:
                    self._reply = reply
        return self._reply

    @property
    def has_replied(self) -> bool:
        """Whether `reply` has returned the reply to the last message, or the error that ended the rank."""
        return self._reply is not None

    def take_result(self) -> Any:
        """Result of the last message, after `reply` has returned it."""
        assert isinstance(self._reply, RankResult)
        result, self._reply = self._reply.result, None
        return result

    def check(self) -> None:
        """Raises TrainingError if the rank has ended, or was silent for too long and is killed.

        Any thread may call it.
        """
        try:
            silent = self._worker.silent_seconds()
        except WorkerDiedError as death:
            raise self._lost(death) from None
        if silent > self.hang_timeout_seconds:
            self._hang = RankLostError(
                f"{self._name} hangs: its process has given no sign of life for {silent:.0f} s, because it is stopped "
                f"or its node does not respond; it was killed. {_RESUME} `trainer.engine.hang_timeout_seconds` sets "
                f"the limit. {see_troubleshooting('a-run-hangs-or-waits')}"
            )
            self._worker.kill()
            raise self._hang

    def kill(self) -> None:
        """Kill the process."""
        self._worker.kill()

    def _lost(self, death: WorkerDiedError) -> TrainingError:
        if self._hang is not None:
            return self._hang
        if isinstance(death, NodeLostError):
            self.node_loss = death
            return RankLostError(f"{self._name} ended {death.exit_reason}. {_RESUME}")
        if not death.killed:
            return TrainingError(f"{self._name} ended {death.exit_reason}.")
        return RankLostError(
            f"{self._name} ended {death.exit_reason}. If no process sent signal 9, the kernel did, because the "
            f"machine ran out of memory. {see_troubleshooting('out-of-memory')}"
        )


def _gather_results(ranks: Sequence[RemoteRank]) -> list[Any]:
    """Each rank's result of the last message, which the first rank has run already.

    Raises the error of the rank that failed first, and RankLostError for ranks that hang.
    """
    waiting = SilenceClock()
    while True:
        replies = [rank.reply(_POLL_SECONDS) for rank in ranks]
        if any(isinstance(reply, StropError) for reply in replies):
            _raise_cause(ranks)
        if None not in replies:
            return [rank.take_result() for rank in ranks]
        if waiting.look(heard=False) > ranks[0].hang_timeout_seconds:
            raise _hang_of(ranks)


def _check_replies(ranks: Sequence[RemoteRank]) -> None:
    """Raise the error of the rank that failed first, if one has failed or ended."""
    if any(isinstance(rank.reply(0), StropError) for rank in ranks):
        _raise_cause(ranks)


def _raise_cause(ranks: Sequence[RemoteRank], error: Exception | None = None) -> NoReturn:
    """Raise the error of the rank that failed first, rather than the failures that it causes in others.

    `error` is the failure of the first rank, which is raised if no other rank has failed. Where the others have only
    waited too long for ranks that do not reply, those hang: RankLostError.
    """
    deadline = time.monotonic() + _CAUSE_SECONDS
    while True:
        errors = {rank: reply for rank in ranks if isinstance(reply := rank.reply(0.05), StropError)}
        causes = [reply for rank, reply in errors.items() if not rank.is_consequence]
        if causes or len(errors) == len(ranks) or time.monotonic() > deadline:
            break
    failures = [*errors.values(), *([error] if error else [])]
    if not causes and len(errors) < len(ranks) and any(_TIMEOUT.search(str(each)) for each in failures):
        raise _hang_of(ranks) from error
    causes.sort(key=lambda cause: not isinstance(cause, RankLostError))
    losses = [rank.node_loss for rank in ranks if rank.node_loss is not None]
    if losses:
        raise _node_loss(ranks, losses[0]) from error
    raise [*causes, *failures][0] from error


def _node_loss(ranks: Sequence[RemoteRank], loss: NodeLostError) -> RankLostError:
    """The error that names all ranks of a lost node, each of which notices the loss by itself."""
    deadline = time.monotonic() + _SAME_NODE_SECONDS
    while time.monotonic() < deadline and not all(rank.has_replied for rank in ranks):
        for rank in ranks:
            rank.reply(0.05)
    lost = [rank.rank for rank in ranks if rank.node_loss is not None and rank.node_loss.node == loss.node]
    whose = "its" if len(lost) == 1 else "their"
    return RankLostError(f"{_names(lost)} ended with {whose} node {loss.node}, {loss.fault}. {_RESUME}")


def _hang_of(ranks: Sequence[RemoteRank]) -> RankLostError:
    """The error that names the ranks that have not replied, while the others waited for them."""
    hung = [rank.rank for rank in ranks if not rank.has_replied]
    verb = "hang" if len(hung) > 1 else "hangs"
    return RankLostError(
        f"{_names(hung)} {verb}: the others have waited for {ranks[0].hang_timeout_seconds:g} s, which is "
        f"`trainer.engine.hang_timeout_seconds`. {_RESUME} {see_troubleshooting('a-run-hangs-or-waits')}"
    )


def _names(ranks: Sequence[int]) -> str:
    """`Rank 3 of the trainer`, or `Ranks 2, 3 of the trainer`."""
    return f"{'Rank' if len(ranks) == 1 else 'Ranks'} {', '.join(map(str, ranks))} of the trainer"


class RankWatch:
    """A thread that watches the other ranks, because some operations wait for a rank that has ended or is stopped.

    When a rank has ended, or has been silent for too long and is killed, it aborts the process group; the operation
    that waits then raises an error.
    """

    def __init__(self, ranks: Sequence[RemoteRank]) -> None:
        self._ranks = ranks
        self._closed = threading.Event()
        threading.Thread(target=self._watch, name="strop-rank-watch", daemon=True).start()

    def close(self) -> None:
        """Stop watching; afterwards ranks may be ended."""
        self._closed.set()

    def _watch(self) -> None:
        while not self._closed.wait(_WATCH_SECONDS):
            try:
                for rank in self._ranks:
                    rank.check()
            except StropError:
                if not self._closed.is_set() and distributed.is_initialized():
                    _abort_process_group()
                return
