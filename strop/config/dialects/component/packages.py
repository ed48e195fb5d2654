"""`pypi_packages_override`: packages that are installed before anything heavy is imported."""

from __future__ import annotations

import re
from collections.abc import Callable

from strop.config.dialects.row import Kind

_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_EXTRAS = rf"(?:\[{_NAME}(?:\s*,\s*{_NAME})*\])?"
_VERSION = r"(?:===?|~=|!=|<=?|>=?)\s*[0-9][A-Za-z0-9.+!*-]*"
_REQUIREMENT = re.compile(rf"{_NAME}{_EXTRAS}\s*(?:{_VERSION})?")


def packages(text: str) -> tuple[str, ...]:
    """`a==1,b` -> what pip is told to install. Raises ValueError for what is no name with a version."""
    found = tuple(part.strip() for part in text.split(",") if part.strip())
    for requirement in found:
        if not _REQUIREMENT.fullmatch(requirement):
            raise ValueError(f"{requirement!r} is no package with its version")
    return found


def _fits(check: Callable[[str], object]) -> Callable[[object], bool]:
    def fits(value: object) -> bool:
        try:
            return isinstance(value, str) and bool(check(value))
        except ValueError:
            return False

    return fits


PACKAGES = Kind(
    "names of packages with versions, separated by commas, such as transformers==5.19.0,peft==0.21.2",
    _fits(packages),
)
