"""Sandboxes of this machine: ordinary programs, escapes, exhaustion, and isolation levels."""

from __future__ import annotations

import os
import platform
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil
import pytest

from strop.config.schema.reward import LocalSandboxConfig
from strop.errors import SandboxError
from strop.sandbox import local
from strop.sandbox.inside.seccomp import _CLONE, _DENIED, _KILL
from strop.sandbox.local import readable_paths
from strop.sandbox.protocol import IsolationLevel, Program
from strop.sandbox.registry import open_sandbox
from tests.sandbox.attacks import ATTACKS, EXHAUSTION

TIMEOUT = 600.0
"""Seconds that only a hang reaches."""
_CONFIG: dict[str, Any] = {"timeout_seconds": TIMEOUT, "memory_mb": 300}


@pytest.fixture(scope="module", params=["process", "bubblewrap"])
def sandbox(request):
    expected = IsolationLevel.CONFINED if request.param == "process" else IsolationLevel.NAMESPACED
    config = LocalSandboxConfig(mechanism=request.param, minimum="limited", **_CONFIG)
    try:
        opened = open_sandbox(config)
    except SandboxError as error:
        pytest.skip(str(error))
    if opened.level < expected:
        pytest.skip(f"this kernel isolates at the level {opened.level.label}")
    return opened


@pytest.fixture(scope="module")
def targets():
    """Targets of the attacks: a file, a listening port, and a process of this user."""
    column = 1 if platform.machine() == "aarch64" else 0
    numbers = {"socket": _DENIED["socket"], "kill": _KILL, "clone": _CLONE}
    with (
        tempfile.TemporaryDirectory(dir=Path.home() if os.access(Path.home(), os.W_OK) else None) as folder,
        socket.create_server(("127.0.0.1", 0)) as server,
    ):
        file = Path(folder) / "file"
        file.write_text("secret")
        yield {
            "file": str(file),
            "port": server.getsockname()[1],
            "victim": os.getpid(),
            **{f"{name}_number": numbers[name][column] for name in numbers},
        }
        assert file.read_text() in ("secret", "secretchanged")


IMPORTS = "import numpy, threading, random, dataclasses, multiprocessing, asyncio, tempfile, datetime"
LETTERS = "print({'a', 'b', 'c', 'd'})"


@pytest.mark.parametrize(
    ("source", "stdin", "stdout"),
    [
        ("print(input()[::-1], input())", "abc\ndef\n", "cba def\n"),
        ("open('f', 'w').write('x'); print(open('f').read(), __name__)", "", "x __main__\n"),
        (f"{IMPORTS}\nprint(numpy.ones(3).sum(), tempfile.mkstemp() is None)", "", "3.0 False\n"),
        ("print(len(input())); print('x' * 300_000)", "y" * 10**6, f"1000000\n{'x' * 300_000}\n"),
    ],
    ids=["input", "files", "imports", "much input and output"],
)
def test_ordinary_programs_complete(sandbox, source, stdin, stdout):
    result = sandbox.run(Program(source, stdin), TIMEOUT)
    assert (result.stdout, result.exit_code, result.completed) == (stdout, 0, True), result.stderr


@pytest.mark.parametrize(
    ("source", "stdout", "error"),
    [("print('before')\n1 / 0", "before\n", "ZeroDivisionError"), ("1 +", "", "SyntaxError")],
)
def test_programs_that_raise_do_not(sandbox, source, stdout, error):
    result = sandbox.run(Program(source), TIMEOUT)
    assert (result.stdout, result.exit_code, result.completed) == (stdout, 1, False)
    assert "program.py" in result.stderr and error in result.stderr and "main" not in result.stderr


def test_sets_have_the_same_order_in_each_run(sandbox):
    assert sandbox.run(Program(LETTERS), TIMEOUT).stdout == sandbox.run(Program(LETTERS), TIMEOUT).stdout


def test_the_environment_is_empty(sandbox, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    result = sandbox.run(Program("import os; print(dict(os.environ))"), TIMEOUT)
    assert "HOME" in result.stdout and "secret" not in result.stdout


@pytest.mark.parametrize("name", ATTACKS)
def test_escapes(sandbox, targets, name):
    result = sandbox.run(Program(ATTACKS[name].format(**targets)), TIMEOUT)
    assert "escaped" not in result.stdout
    assert result.exit_code == 1 or result.stdout in ("rejected\n", "\n"), result


@pytest.mark.skipif(sys.platform != "linux", reason="the attacks are Linux's")
@pytest.mark.parametrize("name", sorted(ATTACKS.keys() - {"a session of its own", "higher limits"}))
def test_the_attacks_succeed_outside(targets, name):
    """Otherwise they would prove nothing. The two others require root."""
    program = ATTACKS[name].format(**targets)
    with tempfile.TemporaryDirectory(dir=Path(targets["file"]).parent) as folder:
        ran = subprocess.run(
            [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, timeout=TIMEOUT
        )
    assert ran.stdout == "escaped\n", ran.stderr


@pytest.mark.parametrize("name", EXHAUSTION)
def test_exhaustion(sandbox, name):
    if name == "threads with small stacks" and "threads" in sandbox.unlimited:
        pytest.skip(
            "this machine does not limit threads: no control group for them, and a kernel that counts them"
        )
    ends_late = name in ("time", "sleep after the output", "regular expression", "threads", "processes")
    result = sandbox.run(Program(EXHAUSTION[name]), 0.5 if ends_late else TIMEOUT)
    assert not result.completed
    assert "escaped" not in result.stdout
    assert len(result.stdout) + len(result.stderr) <= 2_000_000
    if name in ("output", "errors"):
        assert result.stopped == "output limit"


def test_no_process_and_no_folder_remains(sandbox, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # other test processes run programs, too
    others = psutil.Process().children(recursive=True)
    program = "import os; os.mkdir('deep'); os.mkdir('deep/er'); open('deep/er/f', 'w')\nwhile True: pass"
    deep = "import os\nfor _ in range(1100): os.mkdir('d' * 99, 0o700); os.chdir('d' * 99)\nos.mkdir('closed', 0)"
    sandbox.run(Program(program), 0.5)
    assert sandbox.run(Program(deep), TIMEOUT).completed
    assert not set(psutil.Process().children(recursive=True)) - set(others)
    assert not list(tmp_path.iterdir())


def test_packages_of_an_environment_over_another_are_readable(tmp_path, monkeypatch):
    """As those of `uv run --with`, which a `.pth` file adds."""
    monkeypatch.syspath_prepend(str(tmp_path / "site-packages"))
    assert str(tmp_path / "site-packages") in readable_paths()


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"minimum": "namespaced"}, r"isolates programs at the level \w+.*minimum is namespaced.*bubblewrap"),
        ({"mechanism": "bubblewrap"}, r"there is no program `bwrap`"),
    ],
)
def test_without_bubblewrap_what_needs_it_is_refused(monkeypatch, section, message):
    monkeypatch.setattr(local.shutil, "which", lambda name: None)
    with pytest.raises(SandboxError, match=message):
        open_sandbox(LocalSandboxConfig(**section, **_CONFIG))


def test_bubblewrap_that_does_not_work(tmp_path, monkeypatch):
    """As in a container without user namespaces."""
    (tmp_path / "bwrap").write_text("#!/bin/sh\necho 'No permissions to create new namespace' >&2; exit 1\n")
    (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert open_sandbox(LocalSandboxConfig(minimum="limited", memory_mb=513)).name == "process"
    with pytest.raises(SandboxError, match="cannot run a program on this machine: No permissions"):
        open_sandbox(LocalSandboxConfig(mechanism="bubblewrap", memory_mb=513))
