"""`pypi_packages_override`: what a job asks to be installed before it runs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

from strop.errors import ConfigError

_DONE = "STROP_INSTALLED"
"""Tells the process that goes on what was installed for it."""


def install(packages: Sequence[str]) -> None:
    """Install packages with pip, which shows what it does, and start this command anew: what it has
    imported by now is of the versions from before.

    Returns where there are none, or in the process that goes on. Raises ConfigError where pip fails.
    """
    wanted = " ".join(packages)
    if os.environ.get(_DONE, "") == wanted:
        return
    print(f"pypi_packages_override: pip install {wanted}", flush=True)
    done = subprocess.run([sys.executable, "-m", "pip", "install", "--no-input", *packages], check=False)
    if done.returncode != 0:
        raise ConfigError(
            f"pypi_packages_override: pip could not install {wanted} (exit code {done.returncode}); what it "
            "says stands above."
        )
    command = [sys.executable, "-m", "strop", *sys.argv[1:]]
    os.execve(sys.executable, command, os.environ | {_DONE: wanted})
