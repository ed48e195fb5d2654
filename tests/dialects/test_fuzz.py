"""Damaged configurations: each is read, or refused with one paragraph, in a few seconds.

The seed changes every day. `make evidence ARGS=fuzz` tries 5,000 configurations per dialect.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from .fuzz import FUZZED, originals, outcome

SEED = os.environ.get("STROP_FUZZ_SEED") or f"{datetime.now(UTC):%Y-%m-%d}"
COUNT = 12


@pytest.mark.slow
@pytest.mark.parametrize("dialect", FUZZED)
def test_damaged_configuration_is_read_or_refused(
    dialect: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("STROP_HERE", raising=False)
    for number in range(COUNT):
        found = outcome(dialect, f"{SEED}:{number}", tmp_path)
        assert found.result in ("read", "refused"), (
            f"{found.detail}. Repeat with: python -m benchmarks.fuzz --seed {SEED} --dialect {dialect} "
            f"--first {number} --count 1"
        )


@pytest.mark.parametrize("dialect", FUZZED)
def test_every_dialect_has_originals(dialect: str) -> None:
    assert originals(dialect)
