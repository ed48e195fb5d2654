"""A service with a tiny model, and clients of it."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
import tinker

from strop.models.tiny import make_model
from strop.run.entry.chat import find_chat_source
from strop.run.entry.serve import ServiceOptions, open_service

KEY = "tml-test"


def no_space(*_: object) -> None:
    """In place of a function that writes."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(
        tmp_path_factory.mktemp("tinker") / "tiny", ["1+1 is 2"], vocab_size=300, hidden_size=16
    )


@pytest.fixture(scope="session")
def service_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("service")


@pytest.fixture(scope="session")
def service(service_folder: Path, model: Path) -> Iterator[str]:
    """URL of a service."""
    from strop.compat.tinker.service import open_tinker

    further = partial(open_tinker, folder=service_folder, name="tiny")
    options = ServiceOptions("tiny", {}, tokens=(KEY,), further=further)
    with open_service(find_chat_source(model, before=False), options) as access:
        yield access.url.removesuffix("/v1")


@pytest.fixture
def client(service: str) -> Iterator[Callable[[], tinker.ServiceClient]]:
    """Opens clients of the service."""
    with ExitStack() as opened:
        yield lambda: opened.enter_context(tinker.ServiceClient(base_url=service, api_key=KEY))
