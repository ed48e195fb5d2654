"""Output that cannot be written: a full disk, a closed pipe, a closed terminal."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.cases import nightly
from tests.command import TIMEOUT_SECONDS, start_strop

FULL = Path("/dev/full")
pytestmark = pytest.mark.skipif(not FULL.exists(), reason="/dev/full is part of Linux")


@pytest.mark.parametrize("words", ["--help", "version", "explain run.yaml"])
def test_a_full_disk_for_the_output_ends_a_command_with_one_line(run_file: Path, words: str) -> None:
    with FULL.open("wb") as full:
        command = start_strop(*words.split(), cwd=run_file.parent, stdout=full, stderr=subprocess.PIPE)
        assert command.stderr is not None
        errors = command.stderr.read().decode()
        assert (command.wait(TIMEOUT_SECONDS), errors) == (
            1,
            "strop: The output cannot be written: No space left on device.\n",
        )


def test_a_closed_pipe_ends_a_command_silently(run_file: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = start_strop("explain", run_file, stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert command.stderr is not None
    assert (command.stderr.read(), command.wait(TIMEOUT_SECONDS)) == (b"", 1)


@pytest.fixture
def short_run(run_file: Path) -> Path:
    """Folder of a run of three steps, whose run folder is `run`."""
    values = yaml.safe_load(run_file.read_text())
    values |= {"folder": "run", "trainer": {"duration": "3 steps", "tasks_per_step": 1}}
    values |= {"algorithm": {"type": "grpo", "rollouts_per_task": 2}, "checkpoint": {"export": False}}
    values["data"]["max_response_tokens"] = 4
    run_file.write_text(yaml.safe_dump(values))
    return run_file.parent


@pytest.mark.slow
@pytest.mark.parametrize("output", [*nightly("full disk"), "closed pipe", "closed terminal"])
def test_a_run_goes_on_and_prints_into_its_folder(short_run: Path, output: str) -> None:
    if output == "full disk":
        descriptor, reader = os.open(FULL, os.O_WRONLY), None
    else:
        reader, descriptor = pty.openpty() if output == "closed terminal" else os.pipe()
    errors = short_run / "errors"
    with errors.open("wb") as stderr:
        run = start_strop("train", "run.yaml", cwd=short_run, stdout=descriptor, stderr=stderr)
    os.close(descriptor)
    if reader is not None:
        os.read(reader, 1)
        os.close(reader)  # as `| head` does, after the first line
    if output == "closed terminal":
        run.send_signal(signal.SIGHUP)  # as the kernel does to the programs of a terminal
    assert run.wait(TIMEOUT_SECONDS) == 0, errors.read_text()
    log = (short_run / "run/log/console.log").read_text()
    assert log.startswith("The output cannot be written any more (") and "\x1b" not in log
    assert "step 3/3" in log and "Finished 3 steps." in log
    assert errors.read_text().startswith("strop: The output cannot be written any more (")
    assert "; the run prints into run/log/console.log.\n" in errors.read_text()
