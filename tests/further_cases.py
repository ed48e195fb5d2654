"""Parameters of slow tests that `make evidence` runs and CI leaves out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


def further_cases(*cases: Any) -> Iterator[Any]:
    """Cases of a parametrized test, one value or one tuple of values each, with the marker `evidence`."""
    for case in cases:
        values = case if isinstance(case, tuple) else (case,)
        yield pytest.param(*values, marks=pytest.mark.evidence)
