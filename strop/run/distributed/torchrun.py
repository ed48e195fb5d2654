"""Ranks that torchrun has started: the run's own process is the first, the others are agents that wait for it.

The first process announces each group of ranks in the launcher's key-value store. The address of its server, with the
token that authenticates both ends, is in a file of the run's folder, which all nodes must see.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from strop.config.load.loader import LoadedRun
from strop.config.schema.run import RayClusterConfig, Run
from strop.config.schema.trainer import LocalEngineConfig
from strop.errors import ConfigError, PlacementError, RankLostError, RunFolderError, StropError, TrainingError
from strop.runs.folder import RunFolder
from strop.workers.agents import AgentHub, serve_controller
from strop.workers.connection import Address
from strop.workers.network import interface_address, source_address
from strop.workers.signals import StopSignal
from strop.workers.start import AgentPlacement
from strop.workers.torchrun import TorchrunProcess, torchrun_process
from strop.workers.waiting import TimedWait, wait_until

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store


ADDRESS_FILE = "ranks.json"
"""File in the run's folder with the address of the first rank's server."""
_STORE_TIMEOUT = timedelta(seconds=60)
_FILE_SECONDS = 30.0
"""Longest time after which a file that another node has written is visible."""
_POLL_SECONDS = 0.3
_LEAVE_SECONDS = 10.0
"""Longest wait of the first process, at the end of the run, for the others to read that it is over."""
_OVER, _LEFT = "over", "left"


def _group_key(number: int) -> str:
    return f"group/{number}"


def _failure_key(number: int, rank: int) -> str:
    return f"failure/{number}/{rank}"


def _open_store(process: TorchrunProcess) -> Store:
    """The launcher's key-value store, for the current attempt."""
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

    store = TCPStore(
        process.master_address,
        process.master_port,
        is_master=process.rank == 0 and not process.launcher_has_store,
        wait_for_workers=False,
        timeout=timedelta(seconds=300) if process.rank else _STORE_TIMEOUT,
    )
    store.set_timeout(_STORE_TIMEOUT)
    return PrefixStore(f"strop/{process.attempt}", store)


class TorchrunSession:
    """The first process: announces groups of ranks to the others, and the end of the run."""

    def __init__(self, process: TorchrunProcess) -> None:
        self.process = process
        self._store = _open_store(process)
        self._groups = 0
        self._others = process.ranks - 1
        """Number of the other processes whose node is not lost."""

    @contextmanager
    def open_group(self, run: Run) -> Iterator[AgentPlacement]:
        """A new group of the processes that connect in time; they are workers until the end of the context.

        Raises TrainingError if one does not, except after the first group under `trainer.elastic`, and
        RunFolderError if one does not see the run's folder.
        """
        section = run.trainer.engine
        assert not isinstance(section, LocalEngineConfig)
        network, number = section.network, self._groups
        self._groups += 1
        if network.interface is not None:
            host = interface_address(network.interface)
        else:
            host = source_address(self.process.master_address, self.process.master_port)
        hub = AgentHub(host, network.node_timeout_seconds)
        try:
            self._announce(number, hub, RunFolder.of(run).path.absolute(), network.node_timeout_seconds)
            self._wait_for_agents(run, number, hub)
            workers = {f"rank-{rank}": worker for rank, worker in enumerate(hub.workers, 1)}
            yield AgentPlacement(hub, workers, self.process.local_rank, self.process.local_ranks)
        finally:
            self._others = self.process.ranks - 1 - hub.lost_nodes
            hub.close()

    def _announce(self, number: int, hub: AgentHub, folder: Path, node_timeout_seconds: float) -> None:
        file = folder / ADDRESS_FILE
        hub.address.save(file)
        content = {
            "file": str(file),
            "digest": _digest(hub.address),
            "node_timeout_seconds": node_timeout_seconds,
        }
        self._store.set(_group_key(number), json.dumps(content))

    def _wait_for_agents(self, run: Run, number: int, hub: AgentHub) -> None:
        section, elastic = run.trainer.engine, run.trainer.elastic
        assert not isinstance(section, LocalEngineConfig)
        expected = set(range(1, self.process.ranks))
        is_continued = number > 0 and elastic is not None
        limit = elastic.wait_seconds if is_continued and elastic else section.network.join_timeout_seconds

        def all_there() -> bool:
            missing = expected - {worker.launched_rank for worker in hub.workers}
            for rank in missing:
                if self._store.check([_failure_key(number, rank)]):
                    raise RunFolderError(self._store.get(_failure_key(number, rank)).decode())
            return not missing

        if not wait_until(
            all_there, "the other ranks of torchrun", timeout_seconds=limit, interval_seconds=_POLL_SECONDS
        ):
            missing = sorted(expected - {worker.launched_rank for worker in hub.workers})
            if not is_continued:
                raise TrainingError(
                    f"Ranks {', '.join(map(str, missing))} of torchrun did not connect to {hub.address.host} port "
                    f"{hub.address.port} within {limit:g} s (trainer.engine.network.join_timeout_seconds). Connections "
                    "between the nodes must be allowed on all ports; trainer.engine.network.interface selects another "
                    "network."
                )

    def close(self, exit_code: int) -> None:
        """Tell the other processes that the run is over, and wait until they have read it."""
        self._store.set(_OVER, str(exit_code))
        wait_until(
            lambda: self._store.add(_LEFT, 0) >= self._others,
            "the other ranks of torchrun to end",
            timeout_seconds=_LEAVE_SECONDS,
            interval_seconds=_POLL_SECONDS,
        )


_session: TorchrunSession | None = None


def current_session() -> TorchrunSession | None:
    """The session of this process; None if it was not started by torchrun."""
    return _session


@contextmanager
def torchrun_session(loaded: LoadedRun) -> Iterator[None]:
    """Around a run in the first process of torchrun: its ranks are torchrun's processes, until the run is over.

    Does nothing in a process that was started alone. Raises ConfigError if torchrun has started another number of
    processes than the run has ranks.
    """
    global _session
    process = torchrun_process()
    if process is None or _session is not None:
        yield
        return
    session = _session = TorchrunSession(process)
    code = 1
    try:
        for stage in loaded.runs:
            require_torchrun_ranks(stage.run, process)
        yield
        code = 0
    except StropError as error:
        code = error.exit_code
        raise
    finally:
        _session = None
        session.close(code)


def require_torchrun_ranks(run: Run, process: TorchrunProcess) -> None:
    """Raise PlacementError if a run cannot use the processes that torchrun has started."""
    section, ranks = run.trainer.engine, process.ranks
    if run.mode not in ("both", "train"):
        raise PlacementError(
            f"torchrun has started {ranks} processes (WORLD_SIZE), and `mode: {run.mode}` has no ranks of a trainer. "
            "Start it without torchrun."
        )
    if isinstance(run.cluster, RayClusterConfig):
        raise PlacementError(
            f"torchrun has started {ranks} processes (WORLD_SIZE), and cluster: ray starts the ranks of the trainer by "
            "itself. Omit one of them."
        )
    if run.mode == "both" and run.is_distributed:
        raise PlacementError(
            "Under torchrun this process is the first rank of the trainer, and with synchronizer.type "
            f"{run.synchronizer.type} explorer and trainer are processes of their own. Write synchronizer: memory; or "
            "start `mode=train` by torchrun and `mode=explore` by a command of its own; or use cluster: ray."
        )
    elastic = run.trainer.elastic
    fewest = section.ranks if elastic is None else min(elastic.min_ranks, section.ranks)
    if not fewest <= ranks <= section.ranks:
        allowed = (
            f"{section.ranks}"
            if elastic is None
            else f"{section.ranks}, and trainer.elastic.min_ranks {fewest}"
        )
        engine = section.type if section.type != "local" else "fsdp2"
        raise PlacementError(
            f"torchrun has started {ranks} processes (WORLD_SIZE), and trainer.engine.ranks is {allowed}. Write "
            f"trainer.engine={{type: {engine}, ranks: {ranks}}}, or start {section.ranks} processes (--nnodes times "
            "--nproc-per-node)."
        )


def join_torchrun_run() -> None:
    """In a process of torchrun other than the first: run the first one's workers until the run is over, and end.

    Returns at once in all other processes. Ends with the exit code of the run. Raises RunFolderError if this node does
    not see the run's folder, and RankLostError if the first process does not respond.
    """
    process = torchrun_process()
    if process is None or process.rank == 0:
        return
    with StopSignal() as stop:
        _serve_groups(process, stop)


def _serve_groups(process: TorchrunProcess, stop: StopSignal) -> NoReturn:
    from torch.distributed import DistNetworkError, DistStoreError

    try:
        store, number = _open_store(process), 0
        while True:
            if store.check([_group_key(number)]):
                group = json.loads(store.get(_group_key(number)))
                if store.check([_group_key(number + 1)]):
                    number += 1  # it is over already
                    continue
                _serve_group(process, store, number, group)
                number += 1
            elif store.check([_OVER]):
                store.add(_LEFT, 1)
                sys.exit(int(store.get(_OVER)))
            else:
                time.sleep(_POLL_SECONDS)
    except (DistNetworkError, DistStoreError) as error:
        code = stop.received
        if code is not None:  # the launcher ends all processes
            sys.exit(128 + code)
        raise RankLostError(
            f"Rank {process.rank} of torchrun: the key-value store at {process.master_address} port "
            f"{process.master_port} does not respond, so the first rank has ended or its node is lost "
            f"({str(error).splitlines()[0]})."
        ) from error


def _serve_group(process: TorchrunProcess, store: Store, number: int, group: dict[str, str]) -> None:
    file, node = Path(group["file"]), platform.node()
    wait = TimedWait(_FILE_SECONDS)
    while (address := _read_address(file, group["digest"])) is None:
        if store.check([_group_key(number + 1)]) or store.check([_OVER]):
            return
        if wait.remaining_seconds <= 0:
            error = RunFolderError(
                f"Rank {process.rank} of torchrun, on node {node}, does not see the file {file}, which the first rank "
                "has written. `output` must be a folder on storage that all nodes share, at the same path."
            )
            store.set(_failure_key(number, process.rank), str(error))
            raise error
        time.sleep(_POLL_SECONDS)
    serve_controller(
        address,
        rank=process.rank,
        local_rank=process.local_rank,
        node=node,
        node_timeout_seconds=float(group["node_timeout_seconds"]),
        check=lambda: None,
    )


def _read_address(file: Path, digest: str) -> Address | None:
    """The address in a file; None if it is not there, or belongs to another group."""
    try:
        address = Address.load(file)
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}.") from error
    return address if address is not None and _digest(address) == digest else None


def _digest(address: Address) -> str:
    """Fingerprint of an address, which does not reveal its token."""
    return hashlib.sha256(f"strop {address.token}".encode()).hexdigest()[:16]
