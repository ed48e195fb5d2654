"""Control groups: limits of all processes of a program together, where this machine lets this user make groups."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from strop.config.schema.reward import LocalSandboxConfig
from strop.errors import SandboxError
from strop.sandbox.control_groups import ControlGroup, ControlGroups, _controllers
from strop.sandbox.local import INSIDE, LocalSandbox, Mechanism
from strop.sandbox.protocol import Program

THREADS = """
import os, threading, time
try:
    for n in range(99): threading.Thread(target=time.sleep, args=(9,), daemon=True).start()
except RuntimeError: print('limited', flush=True)
os._exit(0)
"""


@pytest.fixture
def groups():
    found = ControlGroups({"threads": 20, "memory": 200_000_000})
    yield found
    found.close()


def test_threads_are_limited_and_nothing_remains(groups):
    if "threads" not in groups.limited:
        pytest.skip("this user may make no control groups for threads")
    group = groups.take()
    command = group.joined([sys.executable, "-c", THREADS])
    assert subprocess.run(command, capture_output=True, text=True, timeout=600).stdout == "limited\n"
    sleeper = subprocess.Popen(group.joined(["sleep", "600"]), start_new_session=True)
    while str(sleeper.pid) not in (group.folders[0] / "cgroup.procs").read_text().split():
        os.sched_yield()
    groups.give_back(group)
    assert sleeper.wait(600) == -9
    assert groups.take() is group
    groups.give_back(group)
    groups.close()
    assert not any(folder.exists() for folder in group.folders)


def test_two_sandboxes_of_one_process_have_groups_of_their_own(groups):
    """Else one would end the other's programs together with its own."""
    if not groups.limited:
        pytest.skip("this user may make no control groups")
    others = ControlGroups({"threads": 30, "memory": 300_000_000})
    group, other = groups.take(), others.take()
    assert not {*group.folders} & {*other.folders}
    groups.give_back(group)
    others.give_back(other)
    others.close()
    assert all(folder.exists() for folder in group.folders)


def test_memory_is_limited(groups):
    if "memory" not in groups.limited:
        pytest.skip("this user may make no control groups for memory")
    group = groups.take()
    program = "x = [bytearray(10**7) for _ in range(40)]; print('done')"
    assert (
        "done"
        not in subprocess.run(
            group.joined([sys.executable, "-c", program]), capture_output=True, text=True
        ).stdout
    )
    groups.give_back(group)


def test_a_group_that_is_gone_fails_the_sandbox_and_not_the_program(tmp_path, caplog):
    sandbox = LocalSandbox(
        LocalSandboxConfig(), Mechanism("process", lambda python, _: list(python), str(INSIDE), None)
    )
    with sandbox._groups._lock:
        sandbox._groups._free = [ControlGroup((tmp_path / "gone",))]
    with pytest.raises(SandboxError, match=r"cannot run a program .*gone/cgroup.procs"):
        sandbox.run(Program("pass"), 30)
    assert "is not used again" in caplog.text
    assert sandbox.run(Program("pass"), 30).completed


def test_without_control_groups_nothing_is_limited(monkeypatch):
    monkeypatch.setattr("strop.sandbox.control_groups._own_controllers", list)
    groups = ControlGroups({"threads": 20, "memory": 10**8})
    assert groups.take() is None and groups.limited == frozenset()


V2 = "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0"
V1 = "c /sys/fs/cgroup/pids cgroup rw,pids 0 0\nc /sys/fs/cgroup/memory cgroup rw,memory 0 0\nc /x cgroup rw,cpu 0 0"
BOTH = ["memory", "threads"]


@pytest.mark.parametrize(
    ("mounts", "own", "expected"),
    [
        (V2, "0::/user.slice/app.slice/x.scope", [("/sys/fs/cgroup/user.slice/app.slice", BOTH)]),
        (V2, "0::/", [("/sys/fs/cgroup", BOTH)]),
        (V1, "8:pids:/a\n4:memory:/b/c",
         [("/sys/fs/cgroup/pids/a", ["threads"]), ("/sys/fs/cgroup/memory/b/c", ["memory"])]),
        ("c /both cgroup rw,memory,pids 0 0", "2:memory,pids:/", [("/both", BOTH)]),
        ("proc /proc proc rw 0 0", "", []),
    ],
)  # fmt: skip
def test_hierarchies_of_a_process(mounts, own, expected):
    found = [(str(each.parent), sorted(each.limits)) for each in _controllers(mounts, own)]
    assert found == expected


def test_a_fork_has_groups_of_its_own(groups):
    if not groups.limited:
        pytest.skip("this user may make no control groups")
    group = groups.take()
    groups.give_back(group)
    groups._process -= 1
    other = groups.take()
    assert other is not group
    groups.give_back(other)
    for folder in group.folders:
        folder.rmdir()
