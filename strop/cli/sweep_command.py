"""`strop sweep`: train a run file with several values and seeds, and compare the runs."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strop.cli.arguments import HereOption, OverridesArgument
from strop.cli.output import echo
from strop.errors import ExitCode, Interrupted
from strop.printable import counted

if TYPE_CHECKING:
    from strop.cli.sweep import SweepMember


def sweep(
    run: Annotated[Path, typer.Argument(metavar="RUN.yaml", help="Run file.", show_default=False)],
    overrides: OverridesArgument = None,
    seeds: Annotated[
        str | None,
        typer.Option(metavar="1,2,3", help="Seeds; each setting is run with each.", show_default=False),
    ] = None,
    jobs: Annotated[int, typer.Option(help="Maximum number of runs at once on this machine.", min=1)] = 1,
    here: HereOption = False,
) -> None:
    """Train a run file with each combination of values, such as trainer.optimizer.lr=1e-5,3e-5, and compare the runs.

    The same command continues a sweep that was stopped; finished runs are not started again.
    """
    from strop.cli.folder_commands import compare
    from strop.cli.sweep import parse_seeds, sweep_members

    members = sweep_members(run, overrides or (), parse_seeds(seeds), here=here)
    waiting = [member for member in members if not member.is_finished]
    echo(f"{counted(len(members), 'run')}, {len(members) - len(waiting)} of them finished; {jobs} at once.")
    failed = _train_all(run, waiting, jobs, here=here)
    done = [member for member in members if member.is_finished]
    if len(done) > 1:
        parent = members[0].folder.path.parent
        echo("")
        _print_settings(done)
        echo("")
        compare([member.folder.path for member in done], html=parent / f"{run.stem}-sweep.html")
    if failed:
        echo(f"\n{counted(len(failed), 'run')} failed; the same command runs them again:", err=True)
        for member in failed:
            echo(f"  {member.folder.path}: see {_log(member)}", err=True)
        raise typer.Exit(ExitCode.FAILED)


def _train_all(run: Path, members: Sequence[SweepMember], jobs: int, *, here: bool) -> list[SweepMember]:
    """Train members, each in a process of its own; returns those that failed.

    A signal to this process stops them all, with their state saved: the processes have sessions of their own, so that a
    terminal's Ctrl-C reaches each of them once.
    """
    from strop.runs.folder import reporting_write_errors

    lock, processes = threading.Lock(), dict[int, subprocess.Popen[bytes]]()
    is_stopped = threading.Event()

    def train(number: int) -> int:
        member = members[number]
        command = [sys.executable, "-m", "strop", "train", str(run), *member.overrides]
        with reporting_write_errors(_log(member)):
            _log(member).parent.mkdir(parents=True, exist_ok=True)
            log = _log(member).open("ab")
        with lock, log:
            if is_stopped.is_set():
                return 0
            processes[number] = subprocess.Popen(
                [*command, "--here"] if here else command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        echo(f"{member.folder.path}: started; its output is in {_log(member)}")
        code = processes[number].wait()
        echo(f"{member.folder.path}: {_outcome(member, code)}")
        return code

    def stop(number: int, _: object) -> None:
        raise Interrupted("The runs of the sweep were stopped; the same command continues them.", number)

    with ThreadPoolExecutor(jobs, thread_name_prefix="sweep") as pool, _handling_signals(stop):
        try:
            codes = list(pool.map(train, range(len(members))))
        except Interrupted:
            with lock:
                is_stopped.set()
                for process in processes.values():
                    process.send_signal(signal.SIGTERM)  # none to a process that has ended
            raise
    return [member for member, code in zip(members, codes, strict=True) if code]


@contextmanager
def _handling_signals(handler: Callable[[int, Any], None]) -> Iterator[None]:
    """Call a function for SIGINT and SIGTERM."""
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def _outcome(member: SweepMember, code: int) -> str:
    from strop.runs.reader import read_run
    from strop.runs.verdict import verdict

    return (
        f"ended with code {code}" if code else f"finished. {verdict(read_run(member.folder.path))}".rstrip()
    )


def _log(member: SweepMember) -> Path:
    """File of the output of a member's processes, next to its folder, which only its run writes."""
    path = member.folder.path
    return path.with_name(f"{path.name}.log")


def _print_settings(members: Sequence[SweepMember]) -> None:
    """The last rewards of each setting: the mean over its seeds, with its standard error."""
    from strop.cli.output import align_columns
    from strop.runs.formatting import format_number
    from strop.runs.overview import held_out_rewards, last_value
    from strop.runs.reader import read_run
    from strop.runs.verdict import mean_and_error

    found: dict[tuple[str, str], list[float]] = {}
    for member in members:
        data = read_run(member.folder.path)
        trained = last_value(data, "reward/mean")
        last = held_out_rewards(data) or ({} if trained is None else {"training reward": trained})
        for name, value in last.items():
            found.setdefault((member.setting or "the run file", name), []).append(value)
    rows = [("setting", "reward", "runs", "mean", "standard error")]
    for (setting, name), values in found.items():
        mean, error = mean_and_error(values)
        rows.append(
            (
                setting,
                name,
                str(len(values)),
                format_number(mean),
                "-" if error is None else format_number(error),
            )
        )
    echo(align_columns(rows, max_width=80))
