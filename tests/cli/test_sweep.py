"""`strop sweep`: its runs, and that finished ones are not started again."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from strop.cli import sweep_command
from strop.cli.sweep import parse_seeds, sweep_members
from strop.runs.metrics_file import recorded_steps
from strop.workers.waiting import wait_until
from tests.command import TIMEOUT_SECONDS, start_strop
from tests.config.refused import assert_refused

from .conftest import Cli

SIZES = (
    "trainer={duration: 2 steps, tasks_per_step: 2}",
    "algorithm.rollouts_per_task=2",
    "data.max_response_tokens=4",
)


@pytest.mark.parametrize(
    ("overrides", "seeds", "names"),
    [
        (["trainer.optimizer.lr=1e-5,3e-5"], [], ["run_lr=1e-05", "run_lr=3e-05"]),
        (["seed=4"], [1, 2], ["run_seed=1", "run_seed=2"]),
        (["name=a", "+algorithm.kl_loss.coef=choice(0,1)"], [3], ["a_coef=0_seed=3", "a_coef=1_seed=3"]),
        (
            ["data.shuffle=true,false", "seed=range(1,3)"],
            [],
            [f"run_shuffle={b}_seed={s}" for b in (True, False) for s in (1, 2)],
        ),
        (
            ["data.train.path='train.jsonl','./train.jsonl'"],
            [],
            ["run_path='train.jsonl'", "run_path='.-train.jsonl'"],
        ),
    ],
)
def test_the_runs_of_a_sweep(
    run_file: Path, overrides: list[str], seeds: list[int], names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run_file.parent)
    members = sweep_members(run_file, overrides, seeds, here=False)
    assert [member.loaded.run.name for member in members] == [name.replace("'", "-") for name in names]
    assert len({member.loaded.run.model_dump_json(exclude={"name"}) for member in members}) == len(members)
    assert not any(member.is_finished for member in members)


@pytest.mark.parametrize(
    ("overrides", "seeds", "message"),
    [
        (["seed=1"], None, "A sweep has several values of a key, or several seeds: write"),
        (["folder=x"], "1,2", "Several runs of the sweep would have one folder. Leave `folder` out"),
        (["trainer.optimizer.lr=interval(1,2)"], None, "write the values of a sweep, such as key=a,b"),
        (["trainer.optimizer.lrr=1,2"], None, "there is no key trainer.optimizer.lrr; did you mean 'lr'"),
        (
            ["trainer.optimizer.lr=1,x"],
            None,
            "override trainer.optimizer.lr=x: trainer.optimizer.lr: expected a number",
        ),
        (["seed=range(1,1000000000000)"], None, "The sweep has more than 1000 runs"),
        (
            ["seed=range(1,31)", "data.shuffle=true,false"],
            ",".join(map(str, range(20))),
            "more than 1000 runs",
        ),
        ([], "one", "--seeds 'one': write numbers with commas between them"),
    ],
)
def test_a_sweep_is_refused_before_its_first_run(
    run_file: Path, overrides: list[str], seeds: str | None, message: str
) -> None:
    assert_refused(lambda: sweep_members(run_file, overrides, parse_seeds(seeds), here=False), message)


class ForkedPopen:
    """In the place of `subprocess.Popen`: starts a run of a sweep as a fork of a process that has torch."""

    def __class_getitem__(cls, _: type) -> type:
        return cls

    def __new__(cls, command: Sequence[str], *, start_new_session: bool, **streams: Any) -> Any:
        assert command[:3] == [sys.executable, "-m", "strop"] and start_new_session
        return start_strop(*command[3:], **streams)


def test_a_sweep_whose_folder_cannot_be_made_ends_with_one_paragraph(cli: Cli, run_file: Path) -> None:
    Path("file").touch()
    result = cli("sweep", run_file, "output=file/runs", "--seeds", "1,2")
    assert (result.exit_code, "cannot be written to file/runs" in result.output) == (1, True), result.output


@pytest.mark.slow
def test_a_sweep_trains_compares_and_goes_on(
    cli: Cli, run_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = SimpleNamespace(Popen=ForkedPopen, DEVNULL=subprocess.DEVNULL, STDOUT=subprocess.STDOUT)
    monkeypatch.setattr(sweep_command, "subprocess", module)
    command = ("sweep", run_file, *SIZES, "--seeds", "1,2", "--jobs", 2)
    first = cli(*command)
    assert first.exit_code == 0 and first.output.count(": finished.") == 2, first.output
    rows = [line.split() for line in first.output.splitlines()]
    assert ["the", "run", "file", "training", "reward", "2"] in [row[:6] for row in rows]
    assert Path("runs/strop/run-sweep.html").is_file()
    again = cli(*command)
    assert (
        again.exit_code == 0
        and "2 runs, 2 of them finished" in again.output
        and "started" not in again.output
    )


@pytest.mark.slow
def test_a_signal_stops_the_runs_of_a_sweep_with_their_state_saved(run_file: Path) -> None:
    sizes = (SIZES[0].replace("2 steps", "100000 steps"), *SIZES[1:])
    words = ("sweep", run_file, *sizes, "--seeds", "1,2")
    command = start_strop(*words, cwd=run_file.parent, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert command.stdout is not None
    folder = run_file.parent / "runs/strop/run_seed=1"
    begun = wait_until(
        lambda: command.poll() is not None or recorded_steps(folder / "metrics.jsonl") > 0,
        "a step",
        timeout_seconds=TIMEOUT_SECONDS,
        interval_seconds=0.1,
    )
    assert begun and command.poll() is None
    command.send_signal(signal.SIGINT)
    output = command.stdout.read().decode()
    assert command.wait(TIMEOUT_SECONDS) == 130 and "the same command continues them" in output, output
    assert "Traceback" not in output and list(folder.glob("checkpoints/step-*"))
    assert not (folder.parent / "run_seed=2").exists()
