"""The address and the network interface at which the ranks meet."""

from __future__ import annotations

import os
import socket
import sys
from urllib.parse import urlsplit

import pytest

from strop.config.schema.trainer import RankNetworkConfig
from strop.training.ranks.rendezvous import open_rendezvous, set_gloo_interface
from strop.workers.agents import AgentHub
from strop.workers.network import LOOPBACK
from strop.workers.start import LOCAL, AgentPlacement


def test_no_other_process_can_take_the_rendezvous_of_ranks_on_several_nodes() -> None:
    hub = AgentHub(LOOPBACK, 20.0)
    try:
        placement = AgentPlacement(hub, {}, local_rank=0, local_ranks=1)
        with open_rendezvous(placement, RankNetworkConfig(), "unused") as rendezvous:
            url = urlsplit(rendezvous.init_method)
            assert url.port is not None
            with pytest.raises(OSError, match="in use"):
                socket.create_server((LOOPBACK, url.port))
    finally:
        hub.close()


def test_ranks_on_one_machine_meet_in_a_file() -> None:
    with open_rendezvous(LOCAL, RankNetworkConfig(), "/run") as rendezvous:
        assert (rendezvous.init_method, rendezvous.listening) == ("file:///run/store", None)


@pytest.mark.skipif(sys.platform != "linux", reason="interfaces are found on Linux only")
@pytest.mark.parametrize("init_method", ["file:///run/store", "tcp://127.0.0.1:29500"])
def test_ranks_on_one_machine_listen_on_loopback(init_method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "before")
    set_gloo_interface(init_method)
    assert os.environ["GLOO_SOCKET_IFNAME"] == "before", "a value of the user is kept"
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    set_gloo_interface(init_method)
    assert os.environ["GLOO_SOCKET_IFNAME"] == "lo"
