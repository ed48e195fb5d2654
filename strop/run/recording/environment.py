"""Environment of a run: command line, host, package versions, and peak memory."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import resource
import shlex
import sys
from pathlib import Path
from typing import Any

import torch

from strop.config.redact import redact_override

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
            "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
            "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
            "torch_threads": torch.get_num_threads(),
        },
    }


def command_line() -> str:
    """Format the command line of this process for a shell, with secrets redacted."""
    return shlex.join([Path(sys.argv[0]).name, *map(redact_override, sys.argv[1:])])


def peak_memory_mb() -> float:
    """Measure the peak resident memory of this process, in units of 10^6 bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * (1 if sys.platform == "darwin" else 1024) / 1e6
