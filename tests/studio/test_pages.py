"""Requests to Studio: pages of runs, access to them, logs, stop and resume."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from starlette.testclient import TestClient

import strop
from strop.errors import ConfigError, MissingExtraError, RunFolderError
from strop.runs.folder import LOCK_FILE, RunFolder
from strop.runs.lock import LockHolder, request_stop, resume_arguments
from strop.studio import processes, server
from strop.workers.process_birth import process_birth

FIRST = "run=sums/first"


@pytest.mark.parametrize(
    ("url", "status", "parts", "absent"),
    [
        ("/runs", 200, ["sums/first", "interrupted", "0.300", "<polyline", "3<span"], []),
        (f"/run?{FIRST}", 200, ["Training reward", "data-chart=", "Stopped by SIGTERM."], []),
        (
            f"/run/rollouts?{FIRST}",
            200,
            ["18 rollouts", "&lt;b&gt;good", "2+3?"],
            ["<b>good", 'rel="prev"', 'rel="next"'],
        ),
        (f"/run/rollouts?{FIRST}&tokens=logprob", 200, ['rel="next"'], ['rel="prev"']),
        (f"/run/rollouts?{FIRST}&tokens=logprob&page=2", 200, ['rel="prev"'], ['rel="next"']),
        (f"/run/rollouts?{FIRST}&min=0.2&max=0.3", 200, ["3 rollouts"], []),
        (f"/run/rollouts?{FIRST}&from=2&to=2&min=&max=x", 200, ["6 rollouts"], []),
        (f"/run/rollouts?{FIRST}&text=nowhere", 200, ["No rollout fits"], []),
        (f"/run/configuration?{FIRST}", 200, ["gsm8k"], ["hunter2"]),
        (f"/run/logs?{FIRST}", 200, ["No log."], []),
        (f"/run/image/a.png?{FIRST}", 200, ["png"], []),
        (f"/run/image/..%2Frun.yaml?{FIRST}", 404, [], []),
        (f"/compare?{FIRST}&run=sums/second", 200, ["<code>seed</code>", "reward/mean"], []),
        (f"/compare?{FIRST}", 400, ["needs two or more runs"], []),
        ("/nothing", 404, ["There is no page /nothing."], []),
        ("/run?run=nothing", 400, ["There is no run folder &#39;nothing&#39;"], []),
        (
            "/compose",
            200,
            ["model.path: empty; write a value", "data.train.path: empty", "reward: empty"],
            [],
        ),
        ("/compose", 200, ["3 answers are missing"], ["https://"]),
    ],
)
def test_a_page_shows(
    client: TestClient, run: Path, url: str, status: int, parts: list[str], absent: list[str]
) -> None:
    page = client.get(url)
    assert page.status_code == status
    assert all(part in page.text for part in parts)
    assert not any(part in page.text for part in [*absent, "hunter2"])


def test_the_token_of_the_url_becomes_a_cookie_of_the_pages_path(client: TestClient) -> None:
    del client.headers["authorization"]
    assert client.get("/runs").status_code == client.get("/runs?token=wrong").status_code == 403
    first = client.get('/runs?token=the token&view="list')
    assert (first.status_code, first.text.count("/studio/runs?view=%22list")) == (200, 2)
    assert "token" not in first.text and "location" not in first.headers
    assert all(
        part in first.headers["set-cookie"] for part in ("HttpOnly", "SameSite=strict", "Path=/studio/;")
    )
    page = client.get("/studio/runs")
    assert (
        page.status_code == 200
        and 'href="/studio/compose"' in page.text
        and 'href="/compose"' not in page.text
    )
    assert client.get("/runs").status_code == 403
    moved = client.get("/studio/", follow_redirects=False)
    assert moved.headers["location"] == "/studio/runs"
    body = {"text": "seed: 1", "name": "a.yaml"}
    assert client.post("/studio/compose/check", json=body).status_code == 200
    assert "There is no page /nothing." in client.get("/studio/nothing").text


def test_a_cookie_of_another_server_of_this_machine_does_not_keep_the_browser_out(client: TestClient) -> None:
    del client.headers["authorization"]
    for cookie, status in (
        ('a=b; strop_studio="the token"; strop_studio=x', 200),
        ("strop_studio=x; ;=", 403),
    ):
        assert client.get("/studio/runs", headers={"cookie": cookie}).status_code == status


def test_other_hosts_and_origins_are_refused_and_pages_load_nothing_from_elsewhere(
    client: TestClient,
) -> None:
    assert client.get("/runs", headers={"host": "strop.example:8765"}).status_code == 421
    body = {"text": "seed: 1", "name": "a.yaml"}
    for origin, status in (("http://127.0.0.1:9999", 403), ("null", 403), ("http://127.0.0.1:8765", 200)):
        assert client.post("/compose/check", json=body, headers={"origin": origin}).status_code == status
    for header in (
        {"host": "["},
        {"origin": "http://["},
        {"host": "127.0.0.1:8765]"},
        {"origin": "http://[::1"},
    ):
        refused = client.post("/compose/check", json=body, headers=header)
        assert refused.status_code == 400 and "no address" in refused.text
    page = client.get("/compose")
    assert "default-src 'self'" in page.headers["content-security-policy"]
    assert "http://" not in page.text.replace("http://www.w3.org", "")


@pytest.mark.parametrize("path", ["check", "set", "plan", "convert", "save", "start", "complete-check"])
def test_a_request_without_its_values_is_refused(client: TestClient, run: Path, path: str) -> None:
    for values in ({}, {"text": 1, "name": 2, "to": 3}):
        refused = client.post(f"/compose/{path}", json=values)
        assert refused.status_code == 400 and "The request has no text" in refused.json()["error"]
    for values in ({}, {"run": "sums/first", "step": "x", "set": "", "group": "", "file": "a.jsonl"}):
        for name in ("choose", "undo"):
            refused = client.post(f"/rate/{name}", json=values)
            assert refused.status_code == 400 and "The request has no" in refused.json()["error"]


@pytest.mark.parametrize("name", ["a\0b.yaml", "x" * 300 + ".yaml", "a/" * 3000, "a\0b.jsonl"])
def test_what_no_file_can_be_called_is_refused(client: TestClient, run: Path, name: str) -> None:
    values = {"text": "seed: 1\n", "name": name, "to": "trinity", "key": "seed", "value": "1"}
    vote = {"run": "sums/first", "file": name, "step": 1, "set": "", "group": "", "chosen": 0, "rejected": 1}
    answers = [
        *(client.get(f"/{page}", params={"run": name}) for page in ("run", "run/curves", "rate")),
        *(client.get(f"/{page}", params={"run": "sums/first", "file": name}) for page in ("compose", "rate")),
        *(client.post(f"/compose/{action}", json=values) for action in ("check", "save", "complete-check")),
        client.post("/rate/undo", json=vote),
        client.post("/run/stop", json={"run": name}),
        client.get(f"/run/image/{quote(name)}", params={"run": "sums/first"}),
        client.get(f"/static/{quote(name)}"),
    ]
    assert {answer.status_code for answer in answers} <= {200, 400, 404}


def test_a_body_without_an_end_is_refused(client: TestClient) -> None:
    refused = client.post("/compose/check", content=(b"x" * 2**20 for _ in range(9)))
    assert refused.status_code == 413


def test_the_command_refuses_a_used_port_and_names_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        used = r"Port \d+ of this machine is used by another program.*--port 0"
        with pytest.raises(ConfigError, match=used):
            server._listen(other.getsockname()[1])
    monkeypatch.setattr(server, "_PACKAGES", ("starlette", "strop_lacks_this"))
    with pytest.raises(MissingExtraError, match=r"strop_lacks_this, .*: pip install 'strop\[studio\]'"):
        server.require_packages()


def test_the_list_of_runs(client: TestClient, run: Path) -> None:
    page = client.get("/runs").text
    table = re.sub("<td[^>]*>[^<]* ago</td>", "", client.get("/runs/table").text)
    assert table in re.sub("<td[^>]*>[^<]* ago</td>", "", page) and "damaged" not in page
    (run / "metrics.jsonl").write_text("not json\n")
    assert "damaged" in client.get("/runs").text


def test_a_list_without_runs_offers_to_compose_one(client: TestClient) -> None:
    assert "No runs yet" in client.get("/runs").text


def test_curves_are_sent_again_only_after_a_change(client: TestClient, run: Path) -> None:
    part = client.get(f"/run/curves?{FIRST}").text
    version = part.partition('data-version="')[2].partition('"')[0]
    again = {"run": "sums/first", "version": version.replace("&#39;", "'")}
    assert client.get("/run/curves", params=again).status_code == 204
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 4, "reward/mean": 0.5}) + "\n")
    changed = client.get("/run/curves", params=again)
    assert changed.status_code == 200 and "Step 4 of 10" in changed.text


def test_best_and_worst_of_groups_stand_side_by_side(client: TestClient, run: Path) -> None:
    page = client.get(f"/run/rollouts?{FIRST}&view=groups").text
    assert page.index("rewards 0 to 1") < page.index("rewards 0.250 to 1") < page.index("rewards 0.500 to 1")
    assert page.count("<span>best</span>") == page.count("<span>worst</span>") == 9
    one = client.get(f"/run/group?{FIRST}&set=training&step=2&group=t1").text
    assert "2 rollouts, the best first" in one and one.index("reward 1<") < one.index("reward 0.250")


def test_conversations_show_roles_calls_and_results(client: TestClient, run: Path) -> None:
    file = run / "rollouts/step-000003.parquet"
    rows = pq.read_table(file).to_pylist()
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    messages = [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "name": "add", "content": "7"},
        {"role": "assistant", "content": "It is 7."},
    ]
    rows[0]["messages"] = json.dumps(messages)
    pq.write_table(pa.Table.from_pylist(rows, schema=pq.read_schema(file)), file)
    page = client.get(f"/run/group?{FIRST}&set=training&step=3&group=t0").text
    assert page.index("<b>add</b>") < page.index('class="role">tool add') < page.index("It is 7.")


def test_the_log_is_that_of_the_process(client: TestClient, run: Path) -> None:
    (run / ".studio").mkdir()
    (run / ".studio/1.log").write_text("first\rsecond \x1b[1m\nthird\n")
    page = client.get(f"/run/logs?{FIRST}").text
    assert "first" not in page.partition('class="log"')[2] and "second \\x1b[1m\nthird" in page


HOLD = """
import json, sys
from pathlib import Path
from strop.runs.folder import RunFolder
from strop.runs.lock import lock_run
with lock_run(RunFolder(Path(sys.argv[1])), mode="both", is_distributed=False):
    print(flush=True)
    input()
"""


def test_stop_ends_the_process_that_holds_the_lock(client: TestClient, run: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(run)]
    env = os.environ | {"PYTHONPATH": str(Path(strop.__file__).parents[1])}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        assert client.post("/run/stop", json={"run": "sums/first"}).status_code == 200
        assert holder.wait() == -signal.SIGTERM
    after = client.post("/run/stop", json={"run": "sums/first"})
    assert after.status_code == 400 and "It has ended already" in after.json()["error"]


def test_stop_reaches_no_process_that_only_the_file_of_a_lock_names(client: TestClient, run: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stranger:
        birth = process_birth(stranger.pid)
        file = run / LOCK_FILE
        for given, is_locked in (("", False), ("another", False), (birth, False), (birth, True), ("", True)):
            file.write_text(json.dumps(asdict(LockHolder(socket.gethostname(), stranger.pid, "", given))))
            with file.open() as lock:
                fcntl.flock(lock, fcntl.LOCK_EX if is_locked else fcntl.LOCK_UN)
                refused = client.post("/run/stop", json={"run": "sums/first"})
            assert refused.status_code == 400 and "It has ended already" in refused.json()["error"]
        assert stranger.poll() is None
        stranger.communicate()


def test_stop_reaches_no_other_machine(run: Path) -> None:
    (run / LOCK_FILE).write_text(json.dumps({"host": "elsewhere", "pid": os.getpid(), "since": ""}))
    with pytest.raises(RunFolderError, match="It runs on elsewhere: stop it there"):
        request_stop(RunFolder(run))


def test_resume_takes_the_resolved_run_file(run: Path) -> None:
    assert resume_arguments(RunFolder(run)) == ["train", "runs/sums/first/run.yaml"]
    (run / "run.yaml").unlink()
    with pytest.raises(RunFolderError, match=r"has no run\.yaml"):
        resume_arguments(RunFolder(run))


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], Any]]:
    """Commands, and their folders, in place of which an empty program runs."""
    found: list[tuple[list[str], Any]] = []

    class Child(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, command: list[str], **options: Any) -> None:
            found.append((command[3:], options.get("cwd")))
            super().__init__(["true"], **options)

    monkeypatch.setattr(subprocess, "Popen", Child)
    return found


def test_resume_repeats_the_command_in_the_folder_of_its_start(
    client: TestClient, run: Path, children: list[tuple[list[str], Any]]
) -> None:
    folder = Path("elsewhere").resolve()
    folder.mkdir()
    started = processes.start_process(["no-such-command"], run, cwd=str(folder))
    assert processes.started_process(run) == started
    folder.rmdir()
    gone = client.post("/run/resume", json={"run": "sums/first"})
    assert gone.status_code == 400 and "which does not exist any more" in gone.json()["error"]
    folder.mkdir()
    assert "location" in client.post("/run/resume", json={"run": "sums/first"}).json()
    assert children == 2 * [(["no-such-command"], str(folder))]


def test_a_folder_from_elsewhere_names_neither_what_is_resumed_nor_what_is_stopped(
    client: TestClient, run: Path, children: list[tuple[list[str], Any]]
) -> None:
    values = {"pid": os.getpid(), "birth": process_birth(os.getpid()), "host": socket.gethostname()}
    values |= {"arguments": ["train", "evil.yaml"], "cwd": "/", "log": "1.log"}
    (run / ".studio").mkdir()
    (run / ".studio/process.json").write_text(json.dumps(values))
    assert processes.started_process(run) is None
    assert client.post("/run/stop", json={"run": "sums/first"}).status_code == 400
    asked = client.post("/run/resume", json={"run": "sums/first"}).json()
    assert "`strop train runs/sums/first/run.yaml`" in asked["question"] and not children
    assert "location" in client.post("/run/resume", json={"run": "sums/first", "confirmed": True}).json()
    assert children == [(["train", "runs/sums/first/run.yaml"], str(Path.cwd()))]


def test_a_start_that_cannot_be_noted_is_undone(
    run: Path, children: list[tuple[list[str], Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with pytest.raises(RunFolderError, match="XDG_STATE_HOME"):
        processes.start_process(["train"], run)
    assert processes.started_process(run) is None
