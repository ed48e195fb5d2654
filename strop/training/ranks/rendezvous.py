"""Process group of the ranks: rendezvous, timeouts, and the network interface of gloo."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal, assert_never
from urllib.parse import urlsplit

import torch
from torch import distributed
from torch.distributed import FileStore, TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import Store, _set_pg_timeout, _world

from strop.config.schema.trainer import RankNetworkConfig
from strop.workers.network import (
    LOOPBACK,
    interface_address,
    interface_of,
    node_address,
    source_address,
)
from strop.workers.start import AgentPlacement, LocalPlacement, RankPlacement, RayPlacement

_GLOO_INTERFACE_ENV = "GLOO_SOCKET_IFNAME"
_NCCL_INTERFACE_ENV = "NCCL_SOCKET_IFNAME"


@dataclass(frozen=True, slots=True)
class RankSpec:
    """Settings of one rank."""

    rank: int
    ranks: int
    """Number of ranks."""
    device: Literal["cpu", "cuda"]
    """`cuda` is one GPU for each rank."""
    device_index: int
    """Index of the GPU among those that the process sees, for `cuda`."""
    init_method: str
    """Rendezvous of the ranks: URL of a file that does not exist yet, or of an address on the first rank's node."""
    collective_timeout_seconds: float
    """Maximum time that the rank waits for the others in a collective operation."""
    network: RankNetworkConfig = field(default_factory=RankNetworkConfig)
    """Network between the ranks."""
    threads: int | None = None
    """Number of threads of torch; None for torch's own choice."""


@dataclass(frozen=True, slots=True)
class RankRendezvous:
    """Address at which the ranks find each other."""

    init_method: str
    """URL of a file that does not exist yet, or of an address of this node."""
    listening: socket.socket | None
    """Socket that listens at the address, for the first rank's key-value store; None for a file."""


@contextmanager
def open_rendezvous(
    placement: RankPlacement, network: RankNetworkConfig, folder: str
) -> Iterator[RankRendezvous]:
    """The rendezvous: a file in a folder of this machine, or an address of this node if ranks are on others.

    Until the first rank takes the socket of an address over, it is held open: a port that was only found free could
    be another process's by then. Raises PlacementError for an interface that this node does not have.
    """
    match placement:
        case LocalPlacement():
            yield RankRendezvous(f"file://{folder}/store", None)
            return
        case RayPlacement():
            host = node_address() if network.interface is None else interface_address(network.interface)
        case AgentPlacement():
            host = placement.hub.host
        case _:
            assert_never(placement)
    with socket.create_server((host, 0)) as listening:
        yield RankRendezvous(f"tcp://{host}:{listening.getsockname()[1]}", listening)


def init_process_group(spec: RankSpec, listening: socket.socket | None = None) -> tuple[torch.device, Store]:
    """Join the process group, once all ranks are there; returns this rank's device, and the ranks' key-value
    store, which any thread may use. The controller watches the processes meanwhile.

    `listening` is the rendezvous's socket, on the first rank."""
    timeout = timedelta(seconds=spec.network.join_timeout_seconds)
    os.environ.update(spec.network.environment)
    backend = "gloo" if spec.device == "cpu" else "cpu:gloo,cuda:nccl"
    device = torch.device(spec.device, *([spec.device_index] if spec.device == "cuda" else []))
    if spec.device == "cuda":
        torch.cuda.set_device(device)
    if spec.network.interface is None:
        set_gloo_interface(spec.init_method)
    else:
        os.environ[_GLOO_INTERFACE_ENV] = os.environ[_NCCL_INTERFACE_ENV] = spec.network.interface
    store = _open_store(spec, listening, timeout)
    distributed.init_process_group(
        backend,
        store=store,
        rank=spec.rank,
        world_size=spec.ranks,
        timeout=timeout,
    )
    return device, store


def _open_store(spec: RankSpec, listening: socket.socket | None, timeout: timedelta) -> Store:
    """The ranks' key-value store, which the first rank runs.

    torch's own `rendezvous` would look for it in torchrun's process, if torchrun has started this one.
    """
    url = urlsplit(spec.init_method)
    if url.scheme == "file":
        return FileStore(url.path, spec.ranks)
    if url.scheme != "tcp" or url.hostname is None or url.port is None:
        raise ValueError(f"the rendezvous {spec.init_method!r} is neither a file nor an address")
    if listening is None:
        return TCPStore(url.hostname, url.port, spec.ranks, timeout=timeout)
    return TCPStore(
        url.hostname,
        url.port,
        spec.ranks,
        is_master=True,
        timeout=timeout,
        master_listen_fd=listening.detach(),
    )


def set_collective_timeout(seconds: float) -> None:
    """Set the maximum time that this rank waits for the others in a collective operation of any group so far; a new
    group does not take over the timeout of the group of all ranks."""
    for group in list(_world.pg_map):
        _set_pg_timeout(timedelta(seconds=seconds), group)


def set_gloo_interface(init_method: str) -> None:
    """Make gloo use the network interface that reaches the rendezvous: loopback if that is a file.

    By default gloo uses the interface of the machine's host name, which can be unreachable from other nodes, and
    which other machines may reach in a run on one machine. A value that the user has set is kept.
    """
    if _GLOO_INTERFACE_ENV in os.environ:
        return
    address = urlsplit(init_method)
    own = LOOPBACK
    if address.hostname is not None and address.port is not None:
        own = source_address(address.hostname, address.port)
    name = interface_of(own)
    if name is not None:
        os.environ[_GLOO_INTERFACE_ENV] = name
