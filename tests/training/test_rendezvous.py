"""The network interface that the ranks use."""

from __future__ import annotations

import os
import sys

import pytest

from strop.training.ranks.rendezvous import set_gloo_interface


@pytest.mark.skipif(sys.platform != "linux", reason="interfaces are found on Linux only")
@pytest.mark.parametrize("init_method", ["file:///run/store", "tcp://127.0.0.1:29500"])
def test_ranks_on_one_machine_listen_on_loopback(init_method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "before")
    set_gloo_interface(init_method)
    assert os.environ["GLOO_SOCKET_IFNAME"] == "before", "a value of the user is kept"
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    set_gloo_interface(init_method)
    assert os.environ["GLOO_SOCKET_IFNAME"] == "lo"
