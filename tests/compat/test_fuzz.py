"""Damaged configurations: each is read, or refused with one paragraph, in a few seconds.

CI reads a fixed sample, the nightly run others every day. `make evidence ARGS=fuzz` tries 5,000 configurations per
dialect.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.cases import nightly
from tests.fuzz.configurations import FUZZED, originals, outcome

TODAY = os.environ.get("STROP_FUZZ_SEED") or f"{datetime.now(UTC):%Y-%m-%d}"


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "count"), [("CI", 4), *nightly((TODAY, 30))], ids=["fixed", "today"])
@pytest.mark.parametrize("dialect", FUZZED)
def test_damaged_configuration_is_read_or_refused(dialect: str, seed: str, count: int, folder: Path) -> None:
    for number in range(count):
        found = outcome(dialect, f"{seed}:{number}", folder)
        assert found.result in ("read", "refused"), (
            f"{found.detail}. Repeat with: python -m benchmarks.fuzz --seed {seed} --only {dialect} "
            f"--first {number} --count 1"
        )


@pytest.mark.parametrize("dialect", FUZZED)
def test_every_dialect_has_originals(dialect: str) -> None:
    assert originals(dialect)
