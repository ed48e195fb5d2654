"""Parameters of tests: further cases, which only `make nightly` runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


def nightly(*cases: Any) -> Iterator[Any]:
    """Cases of a parametrized test, one value or one tuple of values each, with the marker `nightly`."""
    for case in cases:
        values = case if isinstance(case, tuple) else (case,)
        yield pytest.param(*values, marks=pytest.mark.nightly)
