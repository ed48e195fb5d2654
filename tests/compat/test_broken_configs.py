"""A broken configuration passes `check` or is refused with one paragraph that names the place."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from strop.config.preflight import missing_files
from strop.errors import ConfigError, PlacementError, StropError
from tests.cases import nightly

from .broken_configs import DIALECTS, REAL, mutated, read

COUNT = int(os.environ.get("STROP_MUTATIONS", "30"))
"""Number of broken configurations per dialect; `make evidence ARGS=mutations` uses a thousand."""
_PLACE = re.compile(r"config\.yaml:|trinity\.yaml:|override |--")
_LONGEST = 900


def _outcome(dialect: str, number: int) -> StropError | None:
    path = Path("config.yaml")
    path.write_text(mutated(dialect, number), encoding="utf-8")
    try:
        loaded = read(dialect, path, number)
        if loaded is not None:
            missing_files(loaded)
    except StropError as error:
        return error
    return None


@pytest.mark.parametrize("dialect", DIALECTS)
def test_valid_configuration_is_read(dialect: str) -> None:
    Path("config.yaml").write_text((REAL / f"{dialect}.yaml").read_text(encoding="utf-8"))
    for number in (1, 4):
        read(dialect, Path("config.yaml"), number)


@pytest.mark.slow
@pytest.mark.timeout(300 + COUNT)
@pytest.mark.parametrize("count", [12, *nightly(COUNT)])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_broken_configuration_is_read_or_refused(dialect: str, count: int) -> None:
    passed = 0
    for number in range(count):
        error = _outcome(dialect, number)
        passed += error is None
        message = str(error or "")
        lines = message.splitlines()
        assert message.strip() == message and "" not in lines and "Traceback" not in message, number
        if isinstance(error, PlacementError):
            assert "--here" in message, number
        elif isinstance(error, ConfigError):
            faults = [fault.message for fault in error.faults]
            assert all(_PLACE.search(line) and len(line) < _LONGEST for line in faults), (number, message)
    assert passed < count
    assert passed or count < 30
