"""Children of the fork server equal new interpreters, and end as these do."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from strop.workers import fork_server
from strop.workers.child_process import ChildProcess, child_environment, spawn_module, start_module
from strop.workers.fork_server import ForkedProcess, ForkRequest, ForkServer

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the fork server is for Linux")
MODULE, IMPORTS = "tests.workers.forked", ["colorsys", "numpy"]
PIPE, TIMEOUT = subprocess.PIPE, 600


@pytest.fixture(scope="module", autouse=True)
def own_server() -> Iterator[None]:
    """A server that starts with these tests: that of the other tests in this process may have another environment."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fork_server, "_server", None)
        yield
        fork_server._close()


def started(*arguments: str, **streams: int) -> ForkedProcess:
    process = start_module(MODULE, *arguments, imports=IMPORTS, **streams)
    assert isinstance(process, ForkedProcess)
    return process


def output(process: ChildProcess) -> str:
    assert process.stdout is not None
    with process.stdout as stream:
        text = stream.read().decode()
    process.wait(TIMEOUT)
    return text


def parent_of(process: ForkedProcess) -> psutil.Process:
    parent = psutil.Process(process.pid).parent()
    assert parent is not None
    return parent


def wait_for_end(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended
            psutil.Process(pid).wait(TIMEOUT)


def test_child_equals_new_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start_module(MODULE, "end", "0", imports=IMPORTS).wait(
        TIMEOUT
    )  # the server has this process's first state
    monkeypatch.setenv("FORKED_TEST", "later \udcff")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "path", list(dict.fromkeys(sys.path)))
    streams = {"stdin": subprocess.DEVNULL, "stdout": PIPE, "stderr": PIPE}
    processes: list[ChildProcess] = [started("describe", "x", **streams) for _ in range(2)]
    processes.append(spawn_module(MODULE, "describe", "x", **streams))
    first, second, spawned = (json.loads(output(process)) for process in processes)
    assert len({draw for each in (first, second, spawned) for draw in each.pop("draws")}) == 6
    assert list(dict.fromkeys(spawned.pop("path"))) == first.pop("path") == second.pop("path")
    assert first == second == spawned
    assert first["folder"] == str(tmp_path)
    assert first["variable"] == "later \udcff"
    assert first["leads_session"]


@pytest.mark.parametrize(
    ("how", "code"), [("0", 0), ("3", 3), ("exception", 1), ("signal 9", -9), ("signal 15", -15)]
)
def test_exit_code(how: str, code: int) -> None:
    process = started("end", how, stdout=PIPE, stderr=subprocess.STDOUT)
    assert ("LookupError: nothing" in output(process)) == (how == "exception")
    apart = started("end", how, stderr=PIPE)
    assert apart.stderr is not None
    with apart.stderr as errors:
        assert (b"LookupError: nothing" in errors.read()) == (how == "exception")
    assert process.wait(TIMEOUT) == process.poll() == process.returncode == code
    wait_for_end([process.pid])  # it is no zombie
    process.kill()  # no other process gets this signal


def test_waiting_for_running_child_times_out_and_its_command_line_is_shown() -> None:
    process = started("wait", stdin=PIPE)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0)
    assert process.poll() is None
    assert psutil.Process(process.pid).cmdline()[-3:] == ["-m", MODULE, "wait"]
    process.terminate()
    assert process.wait(TIMEOUT) == -signal.SIGTERM


def test_children_of_threads_get_their_own_descriptors() -> None:
    def written(number: int) -> str:
        reading, writing = os.pipe()
        with os.fdopen(reading) as file:
            process = start_module(
                MODULE, "write", str(writing), f"text {number}", imports=IMPORTS, pass_fds=[writing]
            )
            os.close(writing)
            text = file.read()
        return text if process.wait(TIMEOUT) == 0 else ""

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(written, range(16))) == [f"text {number}" for number in range(16)]


def test_library_settings_in_the_environment_need_a_new_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    started("end", "0").wait(TIMEOUT)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    process = start_module(MODULE, "end", "4", imports=IMPORTS)
    assert isinstance(process, subprocess.Popen)
    assert process.wait(TIMEOUT) == 4


@pytest.mark.parametrize("name", ["PYTHONBREAKPOINT", "PYTORCH_NVML_BASED_CUDA_CHECK", "DS_ACCELERATOR"])
def test_what_ray_and_deepspeed_set_in_this_process_leaves_its_children_forks(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "1")
    assert started("end", "4").wait(TIMEOUT) == 4


def test_server_with_threads_forks_no_child() -> None:
    environment = child_environment()
    server = ForkServer.start(environment)
    request = ForkRequest(
        MODULE, ["end", "0"], ["tests.workers.thread_at_import"], environment, sys.path, "/", [0, 1, 2]
    )
    assert server.fork(request, [0, 1, 2]) is None
    server.close()
    assert server.has_ended


def test_children_end_with_a_killed_server_and_the_next_child_has_a_new_one() -> None:
    process = started("wait", stdin=PIPE)
    server = parent_of(process)
    server.kill()
    assert process.wait(TIMEOUT) == -signal.SIGKILL
    wait_for_end([server.pid, process.pid])
    after = started("wait", stdin=PIPE)
    assert parent_of(after) != server
    after.kill()
    assert after.wait(TIMEOUT) == -signal.SIGKILL


@pytest.mark.parametrize("owner_is_forked", [False, True])
def test_server_ends_with_its_killed_owner(owner_is_forked: bool) -> None:
    if owner_is_forked:
        owner: ChildProcess = start_module(
            MODULE, "own-children", imports=IMPORTS, has_children=True, stdout=PIPE
        )
        assert isinstance(owner, ForkedProcess)
    else:
        owner = spawn_module(MODULE, "own-children", stdout=PIPE)
    assert owner.stdout is not None
    with owner.stdout as stream:
        server, child = (int(word) for word in stream.readline().split())
    assert psutil.Process(server).ppid() == owner.pid
    is_fork = psutil.Process(server).cmdline()[-1] == "strop.workers.fork_server_main"
    assert is_fork == owner_is_forked
    owner.kill()
    assert owner.wait(TIMEOUT) == -signal.SIGKILL
    wait_for_end([server, child])
