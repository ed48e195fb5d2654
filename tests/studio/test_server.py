"""Studio's server among strangers: idle, slow and many connections, a full table of files; files of others."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import webbrowser
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import httpx
import pytest
from starlette.testclient import TestClient

from strop.studio import connections, server
from strop.workers.child_process import child_environment
from tests.strangers import LIMIT, idle, status_of

SERVE = """
import os, resource, sys
from pathlib import Path
from strop.studio import connections, server

connections.MAX_CONNECTIONS, files, connections.HEADER_SECONDS = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])

def announce(address):
    print(address, flush=True)
    if files:
        opened = len(os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (opened + files, opened + files))

server.serve(Path("runs"), 0, open_browser=False, announce=announce)
"""
"""Seconds that only a hang takes."""


@contextmanager
def served(
    folder: Path, *, most: int = 256, files: int = 0, seconds: float = 600
) -> Iterator[tuple[str, int, Path]]:
    """Token, port and log of a server with `most` connections, some `files`, and a time for headers."""
    log = folder / "log"
    command = [sys.executable, "-c", SERVE, str(most), str(files), str(seconds)]
    with (
        log.open("wb") as errors,
        subprocess.Popen(command, cwd=folder, stdout=-1, stderr=errors, env=child_environment()) as process,
    ):
        assert process.stdout is not None
        url = urlsplit(process.stdout.readline().decode().strip())
        try:
            assert url.port is not None
            yield url.query.removeprefix("token="), url.port, log
        finally:
            process.terminate()


def test_idle_strangers_give_way(tmp_path: Path) -> None:
    with served(tmp_path, most=20) as (token, port, log), ExitStack() as stack:
        opened = idle(port, 60, stack)
        assert status_of(port, token, "/runs") == 200
        assert opened[0].recv(1) == b""  # the oldest was closed
        assert log.read_bytes() == b""


def test_a_full_table_of_files_is_waited_out_with_one_line(tmp_path: Path) -> None:
    with served(tmp_path, most=10_000, files=16) as (token, port, log), ExitStack() as stack:
        idle(port, 60, stack)
        assert [status_of(port, token, "/runs") for _ in range(3)] == [200] * 3
        text = log.read_text()
        assert text.count("\n") == 1 and "Studio cannot accept a connection: Too many open files." in text


def test_a_request_without_an_end_is_closed(tmp_path: Path) -> None:
    begun = b"GET /runs HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    parts = [b"", begun + b"X: ", begun + b"\r\nGET /runs HTTP/1.1\r\n", b"\0\r\n\r\n"]
    parts += [b"POST /run/stop HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\n{"]
    with served(tmp_path, seconds=0.5) as (_, port, log), ExitStack() as stack:
        for connection in [idle(port, 1, stack, sent)[0] for sent in parts]:
            while connection.recv(2**16):
                pass
        assert "Traceback" not in log.read_text()


def test_a_browser_is_led_by_a_file_of_this_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import uvicorn

    opened: list[tuple[str, int, str]] = []

    def open_browser(url: str) -> bool:
        file = Path(unquote(urlsplit(url).path))
        opened.append((url, file.parent.stat().st_mode & 0o777, file.read_text()))
        return True

    monkeypatch.setattr(webbrowser, "open", open_browser)
    monkeypatch.setattr(uvicorn.Server, "run", lambda *_: None)
    announced: list[str] = []
    server.serve(tmp_path, 0, open_browser=True, announce=announced.append)
    ((url, folder_mode, text),) = opened
    assert announced[0] in text and announced[0].partition("token=")[2] not in url
    assert folder_mode == 0o700 and not Path(unquote(urlsplit(url).path)).exists()


def test_a_signal_ends_studio_without_a_temporary_file(tmp_path: Path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    command = [sys.executable, "-m", "strop", "studio", "runs", "--port", "0", "--open"]
    environment = child_environment(TMPDIR=str(temporary), BROWSER="true")
    with subprocess.Popen(command, cwd=tmp_path, stdout=-1, stderr=-1, env=environment) as process:
        assert process.stdout is not None and process.stderr is not None
        url = urlsplit(process.stdout.readline().decode().split()[-1])
        assert url.port is not None and status_of(url.port, url.query.removeprefix("token="), "/runs") == 200
        assert list(temporary.iterdir())
        process.terminate()
        assert process.stderr.read() == b"strop: Stopped by SIGTERM.\n"
        assert process.wait() == 128 + signal.SIGTERM
    assert not list(temporary.iterdir())


def test_the_locale_c_shows_all_texts_and_refuses_names_that_it_cannot_write(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("notes: Größe ☃\n", encoding="utf-8")
    command = [sys.executable, "-m", "strop", "studio", "runs", "--port", "0"]
    environment = child_environment(LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    with (
        (tmp_path / "log").open("wb") as errors,
        subprocess.Popen(command, cwd=tmp_path, stdout=-1, stderr=errors, env=environment) as process,
    ):
        try:
            assert process.stdout is not None
            address, token = process.stdout.readline().decode().split()[-1].split("?token=")
            query = httpx.Client(headers={"Authorization": f"Bearer {token}"}, timeout=LIMIT)
            assert "Größe ☃" in query.get(f"{address}compose?file=run.yaml").text
            missing = query.get(f"{address}compose?file=größe.yaml")
            assert missing.status_code == 400 and "cannot be the name of a file here" in missing.text
        finally:
            process.terminate()
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_other_errors_of_the_loop_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    known = connections.BrowserConnections()
    loop = asyncio.new_event_loop()
    known.handle_loop_error(loop, {"message": "a fault", "exception": OSError(24, "of no socket")})
    loop.close()
    assert "a fault" in caplog.text


@pytest.fixture
def outside(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run file and a link in another folder."""
    folder = tmp_path_factory.mktemp("outside")
    (folder / "run.yaml").write_text("seed: 77\n")
    (folder / "p.jsonl").write_text('{"prompt": "", "chosen": "secret", "rejected": ""}\n')
    return folder


def test_files_outside_of_the_folder_are_neither_read_nor_written(
    client: TestClient, run: Path, outside: Path
) -> None:
    Path("link").symlink_to(outside)
    told = "is outside of"
    for name in (outside / "run.yaml", "link/run.yaml", "../../../../../../../../etc/passwd", "~/run.yaml"):
        page = client.get("/compose", params={"file": str(name)})
        assert page.status_code == 400 and told in page.text and "77" not in page.text
    for name in (outside, "link", "../..", "../link"):
        page = client.get("/run/configuration", params={"run": str(name)})
        assert page.status_code == 400 and ("is outside of" in page.text or "no run folder" in page.text)
    for name in (outside / "p.jsonl", "link/p.jsonl"):
        vote = {
            "run": "sums/first",
            "set": "training",
            "step": "1",
            "group": "t0",
            "chosen": "1",
            "rejected": "0",
        }
        refused = client.post("/rate/choose", json=vote | {"file": str(name)})
        assert refused.status_code == 400 and told in refused.json()["error"]
        saved = client.post("/compose/save", json={"text": "seed: 1", "name": f"{name}.yaml"})
        assert saved.status_code == 400 and told in saved.json()["error"]
    assert (outside / "p.jsonl").read_text().count("\n") == 1


def test_anywhere_reads_other_folders(client: TestClient, outside: Path) -> None:
    import dataclasses

    app: Any = client.app
    app.state.settings = dataclasses.replace(app.state.settings, anywhere=True)
    assert "77" in client.get("/compose", params={"file": str(outside / "run.yaml")}).text


KINDS = ["fifo", "/proc/kmsg", "/dev/zero"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_is_none_blocks_no_request(client: TestClient, run: Path, kind: str) -> None:
    """Every file of a run folder, and every file that a request or a configuration names."""
    make = os.mkfifo if kind == "fifo" else partial(os.symlink, kind)
    names = ["a.yaml", "a.jsonl", "a.parquet", "a.csv"]
    names += [str(run / name) for name in ("metrics.jsonl", "run.json", "run.yaml", ".lock", ".studio/1.log")]
    names += [
        str(run / "training_examples.jsonl"),
        str(run / "task_pipeline.json"),
        str(run / "images/b.png"),
    ]
    names += [str(run / "annotations/questions/q.json"), str(run / "rollouts/step-000009.parquet")]
    requests = ["/compose?file=a.yaml", "/rate?file=a.jsonl&run=sums/first", "/runs", "/rate?run=sums/first"]
    requests += [
        f"/{page}?run=sums/first"
        for page in ("run", "run/logs", "run/configuration", "run/rollouts", "compose")
    ]
    requests += ["/run/image/b.png?run=sums/first", "/rate/questions?run=sums/first"]
    for name in names:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        before = Path(name).read_bytes() if Path(name).exists() else None
        Path(name).unlink(missing_ok=True)
        make(name)
        for url in requests:
            assert client.get(url).status_code in (200, 400, 404), (name, url)
        assert client.post("/run/stop", json={"run": "sums/first"}).status_code == 400
        Path(name).unlink()
        if before is not None:
            Path(name).write_bytes(before)
    make("deepspeed.json")
    text = "model: {path: m}\ntrainer: {engine: {type: deepspeed, config: deepspeed.json}}"
    checked = client.post("/compose/check", json={"text": text, "name": "b.yaml"}).json()
    assert any("it is not a regular file" in fault["message"] for fault in checked["faults"])
    for name in names[:4]:
        make(name)
        data = {"text": f"data: {{train: {{path: {name}}}}}", "name": "b.yaml", "kind": "column"}
        assert client.post("/compose/suggestions", json=data).json() == {"suggestions": []}
