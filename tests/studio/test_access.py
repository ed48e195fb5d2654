"""Access: token, host and origin; and the errors of the command."""

from __future__ import annotations

import socket

import pytest

pytest.importorskip("ruamel.yaml", reason="comes with strop[studio]")

from starlette.testclient import TestClient

from strop.errors import ConfigError, MissingExtraError
from strop.studio import server
from strop.studio.app import make_app
from tests.studio.conftest import SETTINGS


def test_token_of_the_url_becomes_a_cookie(client: TestClient) -> None:
    client.cookies.clear()
    assert client.get("/runs").status_code == 403
    assert client.get("/runs?token=wrong").status_code == 403
    first = client.get("/runs?token=the token&view=list", follow_redirects=False)
    assert (first.status_code, first.headers["location"]) == (303, "/runs?view=list")
    assert "HttpOnly" in first.headers["set-cookie"] and "SameSite=strict" in first.headers["set-cookie"]
    assert client.get("/runs").status_code == 200


def test_other_hosts_and_origins_are_refused(client: TestClient) -> None:
    assert client.get("/runs", headers={"host": "strop.example:8765"}).status_code == 421
    body = {"text": "seed: 1", "name": "a.yaml"}
    other = client.post("/compose/check", json=body, headers={"origin": "http://127.0.0.1:9999"})
    assert other.status_code == 403
    own = client.post("/compose/check", json=body, headers={"origin": "http://127.0.0.1:8765"})
    assert own.status_code == 200


def test_pages_may_load_nothing_from_elsewhere(client: TestClient) -> None:
    page = client.get("/compose")
    assert "default-src 'self'" in page.headers["content-security-policy"]
    assert "http://" not in page.text.replace("http://www.w3.org", "") and "https://" not in page.text


def test_unknown_pages_are_html(client: TestClient) -> None:
    missing = client.get("/nothing")
    assert missing.status_code == 404 and "There is no page /nothing." in missing.text
    fault = client.get("/run?run=nothing")
    assert fault.status_code == 400 and "There is no run folder &#39;nothing&#39;" in fault.text


def test_used_port_is_one_paragraph() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(
            ConfigError, match=r"Port \d+ of this machine is used by another program.*--port 0"
        ):
            server._listen(other.getsockname()[1])


def test_missing_package_names_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_PACKAGES", ("starlette", "strop_lacks_this"))
    with pytest.raises(MissingExtraError, match=r"strop_lacks_this, .*: pip install 'strop\[studio\]'"):
        server.require_packages()


def test_app_needs_the_token_of_its_own_settings() -> None:
    with TestClient(make_app(SETTINGS), base_url="http://127.0.0.1:8765") as other:
        other.cookies.set("strop_studio_1", SETTINGS.token)
        assert other.get("/runs").status_code == 403
