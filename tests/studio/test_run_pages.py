"""Pages of runs: list, curves, rollouts, comparison, logs, stop and resume."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ruamel.yaml", reason="comes with strop[studio]")

from starlette.testclient import TestClient

from strop.errors import Interrupted, RunFolderError
from strop.runs.control import request_stop, resume_arguments
from strop.runs.folder import LOCK_FILE, RunFolder
from strop.runs.lock import LockHolder
from strop.studio import processes
from tests.report.run_folders import group, metrics, open_recorder


@pytest.fixture
def run(client: TestClient) -> Path:
    """A run of three steps with rollouts, interrupted after them."""
    path = Path("runs/sums/first")
    with pytest.raises(Interrupted), open_recorder(path) as recorder:
        for step in (1, 2, 3):
            recorder.log_step(step, metrics(step))
            groups = [
                group(
                    number, [f"<b>good</b> {step}", "bad"], [1.0, 0.25 * number], prompt=f"{number}+{step}?"
                )
                for number in range(3)
            ]
            recorder.log_rollouts(step, groups)
        raise Interrupted("Stopped by SIGTERM.", signal.SIGTERM)
    return path


def test_list_shows_status_and_rewards(client: TestClient, run: Path) -> None:
    page = client.get("/runs").text
    for part in ("sums/first", "interrupted", "0.300", "<polyline", "3<span"):
        assert part in page
    table = re.sub("<td[^>]*>[^<]* ago</td>", "", client.get("/runs/table").text)
    assert table in re.sub("<td[^>]*>[^<]* ago</td>", "", page)


def test_damaged_runs_are_listed(client: TestClient, run: Path) -> None:
    (run / "metrics.jsonl").write_text("not json\n")
    assert "damaged" in client.get("/runs").text


def test_list_without_runs_offers_to_compose_one(client: TestClient) -> None:
    assert "No runs yet" in client.get("/runs").text


def test_curves_are_sent_again_only_after_a_change(client: TestClient, run: Path) -> None:
    page = client.get("/run?run=sums/first").text
    assert "Training reward" in page and "<svg" in page and "Stopped by SIGTERM." in page
    part = client.get("/run/curves?run=sums/first").text
    version = part.partition('data-version="')[2].partition('"')[0]
    again = {"run": "sums/first", "version": version.replace("&#39;", "'")}
    assert client.get("/run/curves", params=again).status_code == 204
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 4, "reward/mean": 0.5}) + "\n")
    changed = client.get("/run/curves", params=again)
    assert changed.status_code == 200 and "Step 4 of 10" in changed.text


def test_rollouts_are_listed_and_filtered(client: TestClient, run: Path) -> None:
    page = client.get("/run/rollouts?run=sums/first").text
    assert "18 rollouts" in page and "&lt;b&gt;good" in page and "<b>good" not in page
    assert 'rel="next"' in page and 'rel="prev"' not in page
    second = client.get("/run/rollouts?run=sums/first&page=2").text
    assert 'rel="prev"' in second and 'rel="next"' not in second
    assert "3 rollouts" in client.get("/run/rollouts?run=sums/first&min=0.2&max=0.3").text
    assert "6 rollouts" in client.get("/run/rollouts?run=sums/first&from=2&to=2&min=&max=x").text
    assert "No rollout fits" in client.get("/run/rollouts?run=sums/first&text=nowhere").text


def test_best_and_worst_of_groups_stand_side_by_side(client: TestClient, run: Path) -> None:
    page = client.get("/run/rollouts?run=sums/first&view=groups").text
    assert page.index("rewards 0 to 1") < page.index("rewards 0.250 to 1") < page.index("rewards 0.500 to 1")
    assert page.count("<span>best</span>") == page.count("<span>worst</span>") == 9
    one = client.get("/run/group?run=sums/first&set=training&step=2&group=t1").text
    assert "2 rollouts, the best first" in one and one.index("reward 1<") < one.index("reward 0.250")


def test_conversations_show_roles_calls_and_results(client: TestClient, run: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = run / "rollouts/step-000003.parquet"
    rows = pq.read_table(file).to_pylist()
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    rows[0]["messages"] = json.dumps(
        [
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "name": "add", "content": "7"},
            {"role": "assistant", "content": "It is 7."},
        ]
    )
    pq.write_table(pa.Table.from_pylist(rows, schema=pq.read_schema(file)), file)
    page = client.get("/run/group?run=sums/first&set=training&step=3&group=t0").text
    assert page.index("<b>add</b>") < page.index('class="role">tool add') < page.index("It is 7.")


def test_images_are_those_of_the_run_only(client: TestClient, run: Path) -> None:
    (run / "images").mkdir()
    (run / "images/a.png").write_bytes(b"png")
    assert client.get("/run/image/a.png?run=sums/first").content == b"png"
    assert client.get("/run/image/..%2Frun.yaml?run=sums/first").status_code == 404


def test_comparison_shows_settings_and_curves(client: TestClient, run: Path) -> None:
    with open_recorder(Path("runs/sums/second")) as recorder:
        recorder.log_step(1, metrics(5))
    text = (run / "run.yaml").read_text().replace("seed: 1", "seed: 2")
    (run / "run.yaml").write_text(text)
    page = client.get("/compare?run=sums/first&run=sums/second").text
    assert "<code>seed</code>" in page and "reward/mean" in page
    assert "needs two or more runs" in client.get("/compare?run=sums/first").text


def test_configuration_hides_secrets(client: TestClient, run: Path) -> None:
    page = client.get("/run/configuration?run=sums/first").text
    assert "gsm8k" in page and "hunter2" not in page


def test_log_is_that_of_the_process(client: TestClient, run: Path) -> None:
    assert "No log." in client.get("/run/logs?run=sums/first").text
    (run / ".studio").mkdir()
    (run / ".studio/1.log").write_text("first\rsecond \x1b[1m\nthird\n")
    page = client.get("/run/logs?run=sums/first").text
    assert "first" not in page.partition('class="log"')[2] and "second \\x1b[1m\nthird" in page


def test_stop_ends_the_process_that_holds_the_lock(client: TestClient, run: Path) -> None:
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    holder = asdict(LockHolder.current()) | {"pid": sleeper.pid}
    (run / LOCK_FILE).write_text(json.dumps(holder))
    assert client.post("/run/stop", json={"run": "sums/first"}).status_code == 200
    assert sleeper.wait(30) == -signal.SIGTERM
    after = client.post("/run/stop", json={"run": "sums/first"})
    assert after.status_code == 400 and "It has ended already" in after.json()["error"]


def test_stop_does_not_reach_another_machine(run: Path) -> None:
    (run / LOCK_FILE).write_text(json.dumps({"host": "elsewhere", "pid": os.getpid(), "since": ""}))
    with pytest.raises(RunFolderError, match="It runs on elsewhere: stop it there"):
        request_stop(RunFolder(run))


def test_resume_takes_the_resolved_run_file(run: Path) -> None:
    assert resume_arguments(RunFolder(run)) == ["train", "runs/sums/first/run.yaml"]
    (run / "run.yaml").unlink()
    with pytest.raises(RunFolderError, match=r"has no run\.yaml"):
        resume_arguments(RunFolder(run))


def test_process_of_another_start_is_not_taken_for_the_run(run: Path) -> None:
    values = {"pid": os.getpid(), "arguments": [], "cwd": "", "log": "1.log", "birth": "another start"}
    (run / ".studio").mkdir()
    (run / ".studio/process.json").write_text(json.dumps(values))
    started = processes.started_process(run)
    assert started is not None and not started.is_running and not started.terminate()


def test_resume_repeats_the_command_in_the_folder_of_its_start(
    client: TestClient, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    children = []

    class Child(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, command: list[str], **options: Any) -> None:
            children.append((self, options.get("cwd")))
            super().__init__(command, **options)

    monkeypatch.setattr(subprocess, "Popen", Child)
    started = Path("elsewhere").resolve()
    values = {"pid": os.getpid(), "arguments": ["no-such-command"], "cwd": str(started), "log": "1.log"}
    (run / ".studio").mkdir()
    (run / ".studio/process.json").write_text(json.dumps(values | {"birth": "another start"}))
    gone = client.post("/run/resume", json={"run": "sums/first"})
    assert gone.status_code == 400 and "which does not exist any more" in gone.json()["error"]
    started.mkdir()
    assert client.post("/run/resume", json={"run": "sums/first"}).status_code == 200
    ((child, cwd),) = children
    assert cwd == str(started)
    assert child.wait(120) == 2, "strop has no such command"
