"""A rank that dies or hangs is named by the first rank, whatever the others wait for, and no process is left."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from strop.workers.child_process import child_environment
from tests.further_cases import further_cases
from tests.kill_log import kills, record_kill

SCRIPT = """
import sys
from contextlib import closing
from strop.errors import StropError
from strop.training.ranks import remote_rank
from strop.training.ranks.group import RankGroup
from tests.training import dying_ranks

remote_rank.run_rank_worker = getattr(dying_ranks, sys.argv[1])
try:
    with closing(RankGroup(int(sys.argv[2]), "cpu")) as group:
        assert group.run(dying_ranks.Collective(False)) == [float(sys.argv[2])] * int(sys.argv[2])
        group.run(dying_ranks.Collective(True))
except StropError as error:
    print(error)
    sys.exit(error.exit_code)
"""
MOMENTS = (
    "before_it_connects",
    "between_store_and_process_group",
    "in_the_first_collective",
    "in_a_later_collective",
)
ROUNDS = range(kills(1, sources=len(MOMENTS) * 2))


def start(moment: str, ranks: int, script: str = SCRIPT) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, moment, str(ranks)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=child_environment(),
        cwd=Path(__file__).parents[2],
    )


def finish(process: subprocess.Popen[str]) -> str:
    """The output; both pipes also wait for every child process that has inherited them."""
    out, err = process.communicate()
    assert process.returncode in (1, 75), err
    return out


@pytest.mark.faults
@pytest.mark.parametrize(
    ("moment", "ranks", "number"),
    [*itertools.product(MOMENTS, (2,), ROUNDS), *further_cases(*itertools.product(MOMENTS, (3,), ROUNDS))],
)
def test_a_killed_rank_is_named(moment, ranks, number):
    """And not one whose collective operation fails as a consequence."""
    process = start(moment, ranks)
    assert re.match(rf"Rank {ranks - 1} of the trainer ended by signal 9 \(Killed\)", finish(process))
    assert process.returncode == 75
    record_kill("a rank that joins, or is in a collective")


HANGS = """
import os, signal, sys
from contextlib import closing
from strop.errors import StropError
from strop.training.ranks.group import RankGroup
from tests.training import dying_ranks

how, ranks = sys.argv[1], int(sys.argv[2])
try:
    with closing(RankGroup(ranks, "cpu", hang_timeout_seconds=6.0)) as group:
        group.run(dying_ranks.Collective(False))
        if how == "between":
            os.kill(group._remote[-1]._worker.pid, signal.SIGSTOP)
            group.run_each([dying_ranks.Large(bytes(1 << 22))] * ranks)
        group.run(dying_ranks.Hang(how))
except StropError as error:
    print(error)
    sys.exit(error.exit_code)
"""


@pytest.mark.faults
@pytest.mark.parametrize(
    ("how", "ranks"),
    [
        ("stopped", 2),
        ("in", 2),
        ("after", 2),
        ("between", 2),
        *further_cases(("stopped", 3), ("in", 3), ("between", 3)),
    ],
)
def test_a_rank_that_hangs_is_named(how: str, ranks: int) -> None:
    """In a collective operation or outside of one; a stopped process can also block a message to it."""
    process = start(how, ranks, HANGS)
    output = finish(process)
    assert re.match(rf"Rank {ranks - 1} of the trainer hangs: .*hang_timeout_seconds", output), output
    assert output.count("\n") == 1 and process.returncode == 75


@pytest.mark.faults
def test_a_rank_that_cannot_join_says_why():
    process = start("refused", 2)
    assert re.match(
        r"Rank 1 of the trainer failed:\n(.|\n)*is neither a file nor an address", finish(process)
    )
    assert process.returncode == 1


@pytest.mark.faults
def test_the_other_ranks_end_with_the_first():
    """Even while they join, which they would try for half an hour."""
    process = start("never", 3)
    assert process.stdout is not None
    assert process.stdout.readline() == "joining\n"
    children = psutil.Process(process.pid).children()
    assert len(children) == 2
    process.kill()
    process.communicate()
    _, alive = psutil.wait_procs(children, timeout=60)
    assert not alive
