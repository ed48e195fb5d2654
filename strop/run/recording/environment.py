"""Environment of a run: command line, host, package versions, and peak memory."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import resource
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from strop.config.redact import redact_arguments
from strop.config.schema import Run
from strop.errors import SandboxError
from strop.sandbox.registry import open_sandbox
from strop.workers.host_memory import total_memory_bytes

_GIT_SECONDS = 5.0
_PACKAGES = ("strop", "torch", "transformers", "peft", "numpy")


def machine_info() -> dict[str, Any]:
    """Describe the host and the versions of the main packages, as JSON-serializable values."""
    return {
        "python": platform.python_version(),
        "packages": {name: importlib.metadata.version(name) for name in _PACKAGES},
        "host": {
            "name": platform.node(),
            "system": platform.platform(),
            "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "memory_gb": round(total_memory_bytes() / 1e9, 1),
            "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
            "torch_threads": torch.get_num_threads(),
        },
    }


def source_info() -> dict[str, Any]:
    """Commit of the git repository in the current folder, and whether its files differ from it; empty without one."""
    try:
        commit, changes = (
            subprocess.run(
                ["git", *arguments], capture_output=True, text=True, timeout=_GIT_SECONDS, check=True
            ).stdout
            for arguments in (("rev-parse", "HEAD"), ("status", "--porcelain", "--untracked-files=no"))
        )
    except (OSError, subprocess.SubprocessError):  # no git, no repository, or one without a commit
        return {}
    return {"git": {"commit": commit.strip(), "modified": bool(changes.strip())}}


def sandbox_info(run: Run) -> dict[str, Any]:
    """Name and isolation level of the sandbox, for a run whose reward runs programs."""
    if not any(function.function == "code" for function in run.reward.functions):
        return {}
    try:
        sandbox = open_sandbox(run.reward.sandbox)
    except SandboxError as error:  # another machine of the run may score; its scorer has opened the sandbox
        return {"sandbox": {"name": None, "error": str(error)}}
    return {
        "sandbox": {
            "name": sandbox.name,
            "isolation": sandbox.level.label,
            "unlimited": list(sandbox.unlimited),
        }
    }


def describe_sandbox(sandbox: Mapping[str, Any]) -> str:
    """Describe the sandbox of `sandbox_info` in one sentence."""
    if "error" in sandbox:
        return str(sandbox["error"])
    unlimited = sandbox["unlimited"]
    without = f", without a limit of: {', '.join(unlimited)}" if unlimited else ""
    return f"Programs run in the sandbox {sandbox['name']!r}, at the isolation level {sandbox['isolation']}{without}."


def command_line() -> str:
    """Format the command line of this process for a shell, with secrets redacted."""
    return shlex.join([Path(sys.argv[0]).name, *redact_arguments(sys.argv[1:])])


def peak_memory_mb() -> float:
    """Measure the peak resident memory of this process, in units of 10^6 bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * (1 if sys.platform == "darwin" else 1024) / 1e6
