"""Kills at moments that random times rarely meet: in a save, in an export, and of one of two ranks."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from tests.kill_log import kills, record_kill

from .test_kill import STEPS, finish, from_rollouts, rows, start, wait_for_rows

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]
KILLS = range(kills(1))


def run_whole(folder: Path, values: dict[str, Any]) -> tuple[Path, Path]:
    """Run file and folder of an uninterrupted run."""
    run_file = folder / "run.yaml"
    run_file.write_text(yaml.safe_dump(values))
    finish(start(run_file, "whole"))
    return run_file, folder / "strop" / "whole"


@pytest.fixture(scope="module")
def one_process(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("one-process")
    return run_whole(folder, from_rollouts(tiny, folder))


@pytest.fixture(scope="module")
def two_ranks(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("two-ranks")
    values = from_rollouts(tiny, folder)
    values["model"] = {"path": values["model"]["path"]}
    values["trainer"] |= {"engine": {"type": "fsdp2", "ranks": 2, "device": "cpu"}, "epochs_per_step": 1}
    return run_whole(folder, values)


def weights(folder: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*.safetensors"))
    }


@pytest.mark.parametrize("number", KILLS)
def test_a_run_killed_in_a_save_resumes_to_the_same_end(one_process: tuple[Path, Path], number: int) -> None:
    run_file, whole = one_process
    draw = random.Random(f"save {number}")
    folder = whole.with_name(f"save-{number}")
    process = start(run_file, folder.name)
    step = draw.randrange(1, STEPS)
    while process.poll() is None and not any((folder / "checkpoints").glob(f".step-{step:06d}.*/*")):
        time.sleep(0.0005)
    time.sleep(draw.uniform(0, 0.02))
    assert process.poll() is None, process.communicate()[0]
    process.kill()
    process.communicate()
    record_kill("in a save")
    finish(start(run_file, folder.name))
    assert rows(folder) == rows(whole)
    assert weights(folder / "model") == weights(whole / "model")
    assert not list((folder / "checkpoints").glob(".step-*")), "the unfinished checkpoint is removed"


@pytest.mark.parametrize("number", KILLS)
def test_a_killed_export_leaves_no_half_written_model(
    one_process: tuple[Path, Path], tmp_path: Path, number: int
) -> None:
    _, whole = one_process
    draw = random.Random(f"export {number}")
    command = [sys.executable, "-m", "strop", "export", str(whole), "--to"]
    subprocess.run([*command, str(tmp_path / "whole")], check=True, capture_output=True)
    expected = weights(tmp_path / "whole")
    to = tmp_path / "killed"
    process = subprocess.Popen([*command, str(to)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    while process.poll() is None and not list(tmp_path.glob("*killed*")):
        time.sleep(0.0005)
    time.sleep(draw.uniform(0, 0.02))
    process.kill()
    process.communicate()
    record_kill("in an export")
    assert not to.exists() or weights(to) == expected
    subprocess.run([*command, str(to)], check=True, capture_output=True)
    assert weights(to) == expected
    assert sorted(path.name for path in tmp_path.iterdir()) == ["killed", "whole"]


@pytest.mark.parametrize("number", KILLS)
@pytest.mark.parametrize("kind", ["a rank of two", "the controller of two ranks"])
def test_a_run_with_a_killed_rank_resumes_to_the_same_end(
    two_ranks: tuple[Path, Path], kind: str, number: int
) -> None:
    run_file, whole = two_ranks
    draw = random.Random(f"{kind} {number}")
    folder = whole.with_name(f"{kind.split()[1]}-{number}")
    process = start(run_file, folder.name)
    wait_for_rows(process, folder, draw.randrange(STEPS - 1))
    time.sleep(draw.uniform(0, 0.5))
    victim = next(ranks_of(process.pid)) if kind == "a rank of two" else process
    assert process.poll() is None, process.communicate()[0]
    victim.kill()
    output, _ = process.communicate()
    assert process.returncode != 0, output
    record_kill(kind)
    finish(start(run_file, folder.name))
    assert rows(folder) == rows(whole)
    assert weights(folder / "model") == weights(whole / "model")


def ranks_of(controller: int) -> Iterator[psutil.Process]:
    return (child for child in psutil.Process(controller).children() if "rank-1" in child.cmdline())
