"""Process group of the ranks: rendezvous, timeouts, and the network interface of gloo."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import assert_never
from urllib.parse import urlsplit

import torch
from torch import distributed
from torch.distributed import FileStore, TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import Store, _set_pg_timeout, _world

from strop.config.schema.rank_network import RankNetworkConfig
from strop.training.ranks.messages import RankSpec
from strop.workers.network import (
    LOOPBACK,
    find_free_port,
    interface_address,
    interface_of,
    node_address,
    source_address,
)
from strop.workers.start import AgentPlacement, LocalPlacement, RankPlacement, RayPlacement

_GLOO_INTERFACE_ENV = "GLOO_SOCKET_IFNAME"
_NCCL_INTERFACE_ENV = "NCCL_SOCKET_IFNAME"


def init_process_group(spec: RankSpec) -> tuple[torch.device, Store]:
    """Join the process group, once all ranks are there; returns this rank's device, and the ranks' key-value
    store, which any thread may use. The controller watches the processes meanwhile."""
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
    store = _open_store(spec, timeout)
    distributed.init_process_group(
        backend,
        store=store,
        rank=spec.rank,
        world_size=spec.ranks,
        timeout=timeout,
    )
    return device, store


def _open_store(spec: RankSpec, timeout: timedelta) -> Store:
    """The ranks' key-value store, which the first rank runs.

    torch's own `rendezvous` would look for it in torchrun's process, if torchrun has started this one.
    """
    url = urlsplit(spec.init_method)
    if url.scheme == "file":
        return FileStore(url.path, spec.ranks)
    if url.scheme != "tcp" or url.hostname is None or url.port is None:
        raise ValueError(f"the rendezvous {spec.init_method!r} is neither a file nor an address")
    return TCPStore(
        url.hostname, url.port, spec.ranks, is_master=spec.rank == 0, timeout=timeout, multi_tenant=True
    )


def set_collective_timeout(seconds: float) -> None:
    """Set the maximum time that this rank waits for the others in a collective operation of any group so far; a new
    group does not take over the timeout of the group of all ranks."""
    for group in list(_world.pg_map):
        _set_pg_timeout(timedelta(seconds=seconds), group)


def choose_init_method(placement: RankPlacement, network: RankNetworkConfig, folder: str) -> str:
    """URL of the rendezvous: a file in a folder of this machine, or a free address of this node if ranks are on others.

    Raises PlacementError for an interface that this node does not have.
    """
    match placement:
        case LocalPlacement():
            return f"file://{folder}/store"
        case RayPlacement():
            host = node_address() if network.interface is None else interface_address(network.interface)
        case AgentPlacement():
            host = placement.hub.host
        case _:
            assert_never(placement)
    return f"tcp://{host}:{find_free_port(host)}"


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
