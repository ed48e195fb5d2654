"""Damaged files of each kind: each is read, or refused with one paragraph, in a few seconds.

CI reads a fixed sample, the nightly run others every day. `make evidence ARGS=fuzz` tries 5,000 files of each kind.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.cases import nightly
from tests.fuzz.files import KINDS, FileFuzz

TODAY = os.environ.get("STROP_FUZZ_SEED") or f"{datetime.now(UTC):%Y-%m-%d}"


@pytest.mark.parametrize(("seed", "count"), [("CI", 12), *nightly((TODAY, 200))], ids=["fixed", "today"])
@pytest.mark.parametrize("kind", KINDS)
def test_damaged_file_is_read_or_refused(
    kind: str, seed: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    fuzz = FileFuzz(kind, tmp_path)
    for number in range(count):
        found = fuzz.outcome(f"{seed}:{number}")
        assert found.is_good, (
            f"{found.detail}. Repeat with: python -m benchmarks.fuzz --seed {seed} --only {kind} "
            f"--first {number} --count 1"
        )
