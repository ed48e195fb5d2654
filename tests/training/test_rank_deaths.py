"""A rank that dies or hangs is named by the first rank, whatever the others wait for, and no process is left."""

from __future__ import annotations

import re
import subprocess
from itertools import product

import psutil
import pytest

from strop.workers.child_process import ChildProcess, start_module
from tests.cases import nightly
from tests.kill_log import kills, record_kill

pytestmark = pytest.mark.slow
MOMENTS = (
    "before_it_connects",
    "between_store_and_process_group",
    "in_the_first_collective",
    "in_a_later_collective",
)
ROUNDS = range(kills(1, sources=len(MOMENTS) * 2))


def start(*arguments: object) -> ChildProcess:
    """A process of a first rank, since one that has left others while they joined cannot join again."""
    words = map(str, arguments)
    imports = ["strop.training.ranks.group", "strop.training.ranks.process"]
    return start_module(
        "tests.training.first_rank", *words, imports=imports, has_children=True, stdout=subprocess.PIPE
    )


def finish(process: ChildProcess) -> tuple[str, int]:
    """The output and the exit code; the pipe also waits for every child process that has inherited it."""
    assert process.stdout is not None
    with process.stdout:
        return process.stdout.read().decode(), process.wait()


@pytest.mark.parametrize(
    ("moment", "ranks", "number"),
    [
        ("before_it_connects", 2, 0),
        ("in_a_later_collective", 2, 0),
        *nightly(*product(MOMENTS, (2, 3), ROUNDS)),
    ],
)
def test_a_killed_rank_is_named(moment: str, ranks: int, number: int) -> None:
    """And not one whose collective operation fails as a consequence."""
    output, code = finish(start("lose", moment, ranks))
    assert re.match(rf"Rank {ranks - 1} of the trainer ended by signal 9 \(Killed\)", output), output
    assert code == 75
    record_kill("a rank that joins, or is in a collective")


def test_a_rank_that_cannot_join_says_why() -> None:
    output, code = finish(start("lose", "refused", 2))
    assert re.match(r"Rank 1 of the trainer failed:\n(.|\n)*is neither a file nor an address", output), output
    assert code == 1


@pytest.mark.parametrize(
    ("how", "ranks"),
    [
        ("in", 2),
        ("between", 2),
        *nightly(("stopped", 2), ("after", 2), ("stopped", 3), ("in", 3), ("between", 3)),
    ],
)
def test_a_rank_that_hangs_is_named(how: str, ranks: int) -> None:
    """In a collective operation or outside of one; a stopped process can also block a message to it."""
    output, code = finish(start("hang", how, ranks))
    assert re.match(rf"Rank {ranks - 1} of the trainer hangs: .*hang_timeout_seconds", output), output
    assert output.count("\n") == 1 and code == 75


def test_the_other_ranks_end_with_the_first() -> None:
    """Even while they join, which they would try for half an hour."""
    process = start("lose", "never", 3)
    assert process.stdout is not None
    assert process.stdout.readline() == b"joining\n"
    ranks = [
        each
        for each in psutil.Process(process.pid).children(recursive=True)
        if "".join(each.cmdline()[-1:]).startswith("rank-")
    ]
    assert len(ranks) == 2
    process.kill()
    process.wait()
    _, alive = psutil.wait_procs(ranks, timeout=600)
    assert not alive
