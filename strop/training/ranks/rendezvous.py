"""Process group of the ranks: rendezvous, timeouts, and the network interface of gloo."""

from __future__ import annotations

import os
from datetime import timedelta
from urllib.parse import urlsplit

import torch
from torch import distributed
from torch.distributed.distributed_c10d import Store, _set_pg_timeout, _world
from torch.distributed.rendezvous import rendezvous

from strop.training.ranks.messages import RankSpec
from strop.workers.network import LOOPBACK, find_free_port, interface_of, node_address, source_address

JOIN_TIMEOUT_SECONDS = 1800.0
"""Maximum time in which all ranks start and connect; the controller watches their processes meanwhile."""
_GLOO_INTERFACE_ENV = "GLOO_SOCKET_IFNAME"


def init_process_group(spec: RankSpec) -> tuple[torch.device, Store]:
    """Join the process group, once all ranks are there; returns this rank's device, and the ranks' key-value
    store, which any thread may use."""
    backend = "gloo" if spec.device == "cpu" else "cpu:gloo,cuda:nccl"
    device = torch.device(spec.device, *([spec.device_index] if spec.device == "cuda" else []))
    if spec.device == "cuda":
        torch.cuda.set_device(device)
    set_gloo_interface(spec.init_method)
    store, _, _ = next(rendezvous(spec.init_method, spec.rank, spec.ranks))
    distributed.init_process_group(
        backend,
        store=store,
        rank=spec.rank,
        world_size=spec.ranks,
        timeout=timedelta(seconds=JOIN_TIMEOUT_SECONDS),
    )
    return device, store


def set_collective_timeout(seconds: float) -> None:
    """Set the maximum time that this rank waits for the others in a collective operation of any group so far; a new
    group does not take over the timeout of the group of all ranks."""
    for group in list(_world.pg_map):
        _set_pg_timeout(timedelta(seconds=seconds), group)


def cluster_init_method() -> str:
    """URL of a free address of this node."""
    host = node_address()
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
