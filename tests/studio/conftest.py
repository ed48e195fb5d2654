"""Studio's application with a browser's cookie, in an empty folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("ruamel.yaml", reason="comes with strop[studio]")

from starlette.testclient import TestClient

from strop.studio.app import make_app
from strop.studio.settings import StudioSettings

SETTINGS = StudioSettings(Path("runs"), "the token", 8765)


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    """Client that has the token; the runs are in the folder `runs` of the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("STROP_HERE", raising=False)
    with TestClient(make_app(SETTINGS), base_url="http://127.0.0.1:8765") as found:
        found.cookies.set(SETTINGS.cookie, SETTINGS.token)
        yield found
