"""`pypi_packages_override` input: parse its requirements and install them with pip before the run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence

from strop.compat.ledger.value_types import ValueType
from strop.config.redact import safe_text
from strop.errors import ConfigError

_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_EXTRAS = rf"(?:\[{_NAME}(?:\s*,\s*{_NAME})*\])?"
_VERSION = r"(?:===?|~=|!=|<=?|>=?)\s*[0-9][A-Za-z0-9.+!*-]*"
_REQUIREMENT = re.compile(rf"{_NAME}{_EXTRAS}\s*(?:{_VERSION})?")
_INSTALLED = "STROP_INSTALLED"
"""Environment variable that tells the restarted process which packages are already installed for it."""


def parse_requirements(text: str) -> tuple[str, ...]:
    """`a==1,b` as a tuple of pip requirements. Raises ValueError for a part that is not a name with a
    version."""
    found = tuple(part.strip() for part in text.split(",") if part.strip())
    for requirement in found:
        if not _REQUIREMENT.fullmatch(requirement):
            raise ValueError(f"{requirement!r} is not a package name with an optional version")
    return found


def _is_requirements(value: object) -> bool:
    try:
        return isinstance(value, str) and bool(parse_requirements(value))
    except ValueError:
        return False


REQUIREMENTS = ValueType(
    "package names with versions, separated by commas, such as transformers==5.19.0,peft==0.21.2",
    _is_requirements,
)


def install_packages(packages: Sequence[str]) -> None:
    """Install packages with pip and restart this command, so that already imported modules are reloaded.

    Returns where there are no packages, and in the restarted process. Raises ConfigError if pip fails.
    """
    wanted = " ".join(packages)
    if os.environ.get(_INSTALLED, "") == wanted:
        return
    print(safe_text(f"pypi_packages_override: pip install {wanted}"), flush=True)
    done = subprocess.run([sys.executable, "-m", "pip", "install", "--no-input", *packages], check=False)
    if done.returncode != 0:
        raise ConfigError(
            f"pypi_packages_override: pip could not install {wanted} (exit code {done.returncode}); see "
            "pip's "
            "output above."
        )
    command = [sys.executable, "-m", "strop", *sys.argv[1:]]
    os.execve(sys.executable, command, os.environ | {_INSTALLED: wanted})
