"""Sandboxes of this machine: ordinary programs, escapes, exhaustion, and isolation levels."""

from __future__ import annotations

import os
import platform
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from strop.config.schema.sandbox import LocalSandboxConfig
from strop.errors import SandboxError
from strop.sandbox import mechanisms
from strop.sandbox.inside.seccomp import _CLONE, _DENIED, _KILL
from strop.sandbox.protocol import IsolationLevel, Program, Sandbox
from strop.sandbox.registry import open_sandbox
from tests.sandbox.attacks import ATTACKS, EXHAUSTION

_CONFIG: dict[str, Any] = {"timeout_seconds": 30.0, "memory_mb": 300}


@pytest.fixture(scope="module", params=["process", "bubblewrap"])
def sandbox(request: pytest.FixtureRequest) -> Sandbox:
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
def targets() -> Iterator[dict[str, Any]]:
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


def test_ordinary_programs(sandbox: Sandbox) -> None:
    result = sandbox.run(Program("print(input()[::-1], input())", "abc\ndef\n"), 30)
    assert (result.stdout, result.exit_code, result.completed) == ("cba def\n", 0, True)
    result = sandbox.run(Program("print('before')\n1 / 0"), 30)
    assert (result.stdout, result.exit_code, result.completed) == ("before\n", 1, False)
    assert (
        "program.py" in result.stderr and "ZeroDivisionError" in result.stderr and "main" not in result.stderr
    )
    result = sandbox.run(Program("open('f', 'w').write('x'); print(open('f').read(), __name__)"), 30)
    assert result.stdout == "x __main__\n"
    imports = "import numpy, threading, random, dataclasses, multiprocessing, asyncio, tempfile, datetime"
    result = sandbox.run(Program(f"{imports}\nprint(numpy.ones(3).sum(), tempfile.mkstemp() is None)"), 30)
    assert result.stdout == "3.0 False\n", result.stderr
    result = sandbox.run(
        Program("import sys; print(len(sys.stdin.read())); print('x' * 300_000)", "y" * 10**6), 30
    )
    assert len(result.stdout) == 300_009
    result = sandbox.run(Program("1 +"), 30)
    assert "SyntaxError" in result.stderr
    assert sandbox.run(Program("print({'a', 'b', 'c', 'd'})"), 30).stdout == (
        sandbox.run(Program("print({'a', 'b', 'c', 'd'})"), 30).stdout
    )


def test_the_environment_is_empty(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    result = sandbox.run(Program("import os; print(dict(os.environ))"), 30)
    assert "HOME" in result.stdout and "secret" not in result.stdout


@pytest.mark.parametrize("name", ATTACKS)
def test_escapes(sandbox: Sandbox, targets: dict[str, Any], name: str) -> None:
    result = sandbox.run(Program(ATTACKS[name].format(**targets)), 30)
    assert "escaped" not in result.stdout
    assert result.exit_code == 1 or result.stdout in ("rejected\n", "\n"), result


@pytest.mark.skipif(sys.platform != "linux", reason="the attacks are Linux's")
@pytest.mark.parametrize("name", sorted(ATTACKS.keys() - {"a session of its own", "higher limits"}))
def test_the_attacks_succeed_outside(targets: dict[str, Any], name: str) -> None:
    """Otherwise they would prove nothing. The two others require root."""
    program = ATTACKS[name].format(**targets)
    with tempfile.TemporaryDirectory(dir=Path(targets["file"]).parent) as folder:
        ran = subprocess.run(
            [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, timeout=60
        )
    assert ran.stdout == "escaped\n", ran.stderr


@pytest.mark.parametrize("name", EXHAUSTION)
def test_exhaustion(sandbox: Sandbox, name: str) -> None:
    ends_late = name in ("time", "sleep after the output", "regular expression", "threads", "processes")
    result = sandbox.run(Program(EXHAUSTION[name]), 0.5 if ends_late else 30.0)
    assert not result.completed
    assert "escaped" not in result.stdout
    assert len(result.stdout) + len(result.stderr) <= 2_000_000
    if name in ("output", "errors"):
        assert result.stopped == "output limit"


def test_no_process_and_no_folder_remains(
    sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # other test processes run programs, too
    others = psutil.Process().children(recursive=True)
    sandbox.run(
        Program("import os; os.mkdir('deep'); os.mkdir('deep/er'); open('deep/er/f', 'w')\nwhile True: pass"),
        0.5,
    )
    assert not set(psutil.Process().children(recursive=True)) - set(others)
    assert not list(tmp_path.iterdir())


def test_a_level_below_the_minimum_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mechanisms.shutil, "which", lambda name: None)
    with pytest.raises(
        SandboxError, match=r"isolates programs at the level \w+.*minimum is namespaced.*bubblewrap"
    ):
        open_sandbox(LocalSandboxConfig(minimum="namespaced", **_CONFIG))
    with pytest.raises(SandboxError, match=r"there is no program `bwrap`"):
        open_sandbox(LocalSandboxConfig(mechanism="bubblewrap", **_CONFIG))


def test_bubblewrap_that_does_not_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container without user namespaces."""
    (tmp_path / "bwrap").write_text("#!/bin/sh\necho 'No permissions to create new namespace' >&2; exit 1\n")
    (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert open_sandbox(LocalSandboxConfig(minimum="limited", memory_mb=513)).name == "process"
    with pytest.raises(SandboxError, match="cannot run a program on this machine: No permissions"):
        open_sandbox(LocalSandboxConfig(mechanism="bubblewrap", memory_mb=513))
