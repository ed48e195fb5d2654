"""Roles as local processes: start, stop, restart, and the report of errors."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import yaml

import strop
from strop.buffer import remote as client
from strop.buffer.factory import BUFFER_ADDRESS_FILE
from strop.errors import StoreError, StropError
from strop.run.distributed.role import LocalRoleProcess, RoleExit, RoleSpec
from strop.run.entry.role_main import ROLE_ENTRY
from strop.workers import connection
from strop.workers.waiting import never_stop
from tests.files import digest

from .command import Command, StropCommand
from .groups_by_id import states as states_of
from .test_distributed import rows_of

pytest.importorskip("sqlalchemy")


def start(tmp_path: Path, values: dict, *overrides: str) -> StropCommand:
    """`strop train`, whose run file and output are files in a folder."""
    run_file = tmp_path / "run.yaml"
    run_file.write_text(yaml.safe_dump(values))
    output = tmp_path / f"output-{len(list(tmp_path.glob('output-*')))}.txt"
    return StropCommand(output, "train", str(run_file), *overrides)


@pytest.mark.slow
def test_a_stopped_and_resumed_run_equals_the_run_in_one_process(values, tmp_path):
    length = {"trainer__duration": "6 steps"}  # so that the run cannot end before the signal
    reference = strop.train(strop.load(values(name="one", **length)))
    run = values(name="two", synchronizer="checkpoint", **length)
    folder = tmp_path / "runs" / "strop" / "two"
    process = start(tmp_path, run)
    wait_for(folder / "metrics.jsonl", lines=3, process=process)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate()
    assert process.returncode == 128 + signal.SIGTERM, output
    assert "Explorer and trainer have saved their states" in output
    assert "Traceback" not in output
    output = start(tmp_path, run).finish()
    assert "explorer | " in output and "trainer  | " in output
    assert rows_of(folder) == rows_of(reference.folder)
    weights = "model.safetensors"
    assert digest(folder / "model" / weights) == digest(reference.model / weights)
    assert set(states_of(folder).values()) == {"done"}


def kill_one(process: Command, name: str) -> bool:
    """Kill the role, rank or engine of this name with SIGKILL; returns False if it does not run."""
    for child in psutil.Process(process.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended meanwhile, or is a zombie
            if child.cmdline()[-1:] == [name]:
                child.kill()
                return True
    return False


def group_ids(steps: int) -> set[str]:
    """The ids of all groups of a small run."""
    return {f"train-{step:06d}-{number:05d}" for step in range(1, steps + 1) for number in range(8)}


def wait_for(file: Path, *, lines: int, process: Command) -> None:
    deadline = time.monotonic() + 900
    while not (file.exists() and file.read_text().count("\n") >= lines):
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()[0]
        time.sleep(0.02)


@pytest.mark.slow
def test_a_stopped_buffer_process_is_an_outage_and_ends_with_the_run(values, tmp_path, monkeypatch):
    """SIGSTOP: the process answers nobody, and handles no signal until it is continued."""
    loaded = strop.load(values(synchronizer="checkpoint", buffer="queue"))
    folder = loaded.run.folder_path
    folder.mkdir(parents=True)
    role = LocalRoleProcess(RoleSpec("buffer", loaded, None, sys.argv), replace(ROLE_ENTRY, imports=()))
    try:
        member = client.BufferClientRole("trainer", reads=True, writes=False)
        store = client.RemoteStore(folder / BUFFER_ADDRESS_FILE, member, never_stop)
        os.kill(role._process.pid, signal.SIGSTOP)
        while any(thread.read_text().rpartition(")")[2].split()[0] != "T" for thread in threads_of(role)):
            time.sleep(0.001)
        monkeypatch.setattr(client, "PEER_TIMEOUT_SECONDS", 0.2)
        monkeypatch.setattr(client, "OUTAGE_SECONDS", 0.3)
        monkeypatch.setattr(connection, "HANDSHAKE_SECONDS", 0.2)
        with pytest.raises(
            StoreError, match=r"has not replied for \d+ s, and was not restarted\. Start the run"
        ):
            store.counts()
        store.close()
        role.request_stop()
        assert role.wait() == RoleExit()
    finally:
        role._process.kill()


def threads_of(role: LocalRoleProcess) -> list[Path]:
    """The state of each thread of a role's process."""
    return list(Path(f"/proc/{role._process.pid}/task").glob("*/stat"))


@pytest.mark.slow
def test_a_users_reward_function_runs_in_the_explorer_and_its_error_is_reported(values, capfd):
    run = values(synchronizer="checkpoint", checkpoint__every="1 steps")
    del run["reward"]

    def broken(completion, answer):
        raise KeyError("no such answer")

    with pytest.raises(StropError, match="no such answer") as caught:
        strop.train(strop.load(run), reward=broken)
    assert caught.value.exit_code == 1
    assert "Traceback" not in capfd.readouterr().out
