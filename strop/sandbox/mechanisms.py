"""Mechanisms of local sandboxes: bubblewrap, and a plain process that confines itself."""

from __future__ import annotations

import os
import platform
import re
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from strop.config.schema.reward import LocalSandboxConfig
from strop.errors import SandboxError
from strop.sandbox.local import FOLDER_FILES, INSIDE, LocalSandbox, Mechanism, device_paths, readable_paths
from strop.sandbox.protocol import IsolationLevel

_INSIDE = "/sandbox/inside"
_FOLDER = "/program"
_COUNTED_BY_NAMESPACE = (5, 14)
"""First version of Linux that counts the threads of a user in each user namespace on its own."""


def open_local(config: LocalSandboxConfig) -> LocalSandbox:
    """Open the sandbox with the configured mechanism. Raises SandboxError if it does not work here, or if its
    isolation level is below the minimum."""
    sandbox = _open_mechanism(config)
    minimum = IsolationLevel[config.minimum.upper()]
    if sandbox.level < minimum:
        raise SandboxError(
            f"This machine isolates programs at the level {sandbox.level.label} (sandbox {sandbox.name!r}), and "
            f"reward.sandbox.minimum is {minimum.label}. Install bubblewrap (`apt-get install bubblewrap`), use a "
            "Linux kernel with Landlock and seccomp (5.13 or newer), name a SandboxFusion server, or write "
            f"reward.sandbox.minimum: {sandbox.level.label}."
        )
    return sandbox


def _open_mechanism(config: LocalSandboxConfig) -> LocalSandbox:
    process = Mechanism("process", lambda python, folder: list(python), str(INSIDE), None)
    path = shutil.which("bwrap")
    if config.mechanism == "process" or (config.mechanism == "auto" and path is None):
        return LocalSandbox(config, process)
    if path is None:
        raise SandboxError(
            "reward.sandbox.mechanism is bubblewrap, and there is no program `bwrap` in PATH. Install it "
            "(`apt-get install bubblewrap`), or write mechanism: auto."
        )
    bubblewrap = Mechanism(
        "bubblewrap",
        partial(_bubblewrap, path, config),
        _INSIDE,
        _FOLDER,
        _counts_threads(),
        IsolationLevel.NAMESPACED,
    )
    try:
        return LocalSandbox(config, bubblewrap)
    except SandboxError:
        if config.mechanism == "bubblewrap":
            raise
        return LocalSandbox(config, process)  # no user namespaces, as in many containers


def _counts_threads() -> bool:
    """Whether the kernel counts the threads in a user namespace; of root it limits none."""
    version = re.match(r"(\d+)\.(\d+)", platform.release())
    is_new = version is not None and tuple(map(int, version.groups())) >= _COUNTED_BY_NAMESPACE
    return is_new and os.geteuid() != 0


def _bubblewrap(path: str, config: LocalSandboxConfig, python: Sequence[str], folder: str) -> list[str]:
    size = str(config.file_mb * 1_000_000 * FOLDER_FILES)
    options = [
        *("--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"),
        *("--unshare-cgroup-try", "--uid", "65534", "--gid", "65534", "--cap-drop", "ALL"),
        *("--die-with-parent", "--new-session"),
    ]
    for source in _outermost(readable_paths()):
        options += ["--ro-bind", source, source]
    for device in device_paths():
        options += ["--dev-bind", device, device]
    options += ["--ro-bind", str(INSIDE), _INSIDE, "--size", size, "--tmpfs", _FOLDER, "--chdir", _FOLDER]
    return [path, *options, "--remount-ro", "/", "--", *python]


def _outermost(paths: Sequence[str]) -> list[str]:
    """The paths that are not below another one of them."""
    return [p for p in paths if not any(Path(other) in Path(p).parents for other in paths)]
