"""The endpoint with 200 clients at once, for a moment; `make evidence ARGS=endpoint` takes a minute."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("aiohttp")

from benchmarks.endpoint import CASES, measure


@pytest.mark.faults
def test_many_clients_get_their_responses_and_leave_nothing_behind(tmp_path: Path) -> None:
    load = measure(200, 0.0, tmp_path / "model")
    assert set(load.statuses) == {(case.name, case.status) for case in CASES}
    assert sum(load.statuses.values()) == 400
    assert (load.left_threads, load.left_files) == (0, 0)
