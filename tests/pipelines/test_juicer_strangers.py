"""The Data-Juicer service among strangers: idle and slow connections, and a full table of files."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from strop.pipelines.juicer import service
from tests.strangers import LIMIT, idle, status_of

SERVE = """
import os, resource, runpy, sys
sys.path.insert(0, sys.argv.pop(1))
import service
seconds, strangers, files = (float(sys.argv.pop(1)) for _ in range(3))
service.HEADER_SECONDS, service.MAX_STRANGERS = seconds, int(strangers)
if files:
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + int(files),) * 2)
service.main()
"""
"""Seconds that only a hang takes."""


@contextmanager
def served(
    folder: Path, *, seconds: float = 600, strangers: int = 64, files: int = 0
) -> Iterator[tuple[int, Path]]:
    """Port and log of a service."""
    log = folder / "log"
    place = str(Path(service.__file__).parent)
    command = [sys.executable, "-c", SERVE, place, str(seconds), str(strangers), str(files)]
    environment = os.environ | {service.TOKEN: "token"}
    with (
        log.open("wb") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, env=environment) as process,
    ):
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["port"], log
        finally:
            process.kill()


def test_idle_strangers_give_way(tmp_path: Path) -> None:
    with served(tmp_path, strangers=10) as (port, log), ExitStack() as stack:
        opened = idle(port, 60, stack)
        assert status_of(port, "token", "/health") == 200 and opened[0].recv(1) == b""
        assert log.read_text() == ""


def test_a_full_table_of_files_is_waited_out_with_one_line(tmp_path: Path) -> None:
    with served(tmp_path, strangers=10_000, files=12) as (port, log), ExitStack() as stack:
        idle(port, 60, stack)
        assert [status_of(port, "token", "/health") for _ in range(3)] == [200] * 3
        assert log.read_text() == "A connection cannot be accepted: Too many open files.\n"


@pytest.mark.parametrize("sent", [b"", b"GET /health HTTP/1.1\r\nX: "])
def test_a_request_without_an_end_is_closed(tmp_path: Path, sent: bytes) -> None:
    with served(tmp_path, seconds=0.2) as (port, log), ExitStack() as stack:
        (connection,) = idle(port, 1, stack, sent)
        while connection.recv(2**16):
            pass
        assert log.read_text() == ""


@pytest.mark.parametrize(
    ("recipe", "told"),
    [
        ("a: &a [x, x]\nb: &b [*a, *a]\nprocess: [*b, *b]\n", "it has the alias *a; write the values there"),
        ("process: " + "[" * 99_999, "it nests more than 50 mappings or lists"),
        ("process: [" + "x, " * 99_999 + "]", "it is larger than 200,000 bytes"),
        ("process: [\xff", "codec can't decode"),
        ("process: {", "expected the node content"),
        ("process: [!!python/name:os.system x]", "could not determine a constructor"),
        ("process: [!!int x]", "invalid literal"),
        ("? {a: 1}\n: 2\n", "unhashable"),
        ("[]", "has no list `process`"),
        ("process: [x]\nnp: many\n", "np is 'many'; write a number of processes"),
        (None, "it is not a regular file"),
    ],
)
def test_a_hostile_recipe_is_refused(
    service_log: tuple[int, Path], tmp_path: Path, recipe: str | None, told: str
) -> None:
    file = tmp_path / "recipe.yaml"
    if recipe is None:
        os.mkfifo(file)
    else:
        file.write_bytes(recipe.encode("latin-1"))
    status, error = refused(service_log[0], json.dumps({"config_path": str(file)}).encode())
    assert (status, told in error) == (400, True), error
    assert service_log[1].read_text() == ""


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b"[" * 100_000, b"\xff", b"1" * 2_000_000])
@pytest.mark.parametrize("path", ["/create", "/close"])
def test_a_hostile_request_is_refused(service_log: tuple[int, Path], path: str, body: bytes) -> None:
    assert refused(service_log[0], body, path)[0] == 400
    assert service_log[1].read_text() == ""


def refused(port: int, body: bytes, path: str = "/create") -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT)
    connection.request("POST", path, body, {"Authorization": "Bearer token"})
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())["error"]


@pytest.fixture(scope="module")
def service_log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, Path]]:
    with served(tmp_path_factory.mktemp("service")) as running:
        yield running


def test_a_length_that_is_none_is_refused(tmp_path: Path) -> None:
    with served(tmp_path) as (port, log):
        for length in ("-1", "x", "²"):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT)
            connection.putrequest("POST", "/create")
            connection.putheader("Authorization", "Bearer token")
            connection.putheader("Content-Length", length.encode("latin-1"))
            connection.endheaders()
            assert connection.getresponse().status == 400
            connection.close()
        assert log.read_text() == ""
