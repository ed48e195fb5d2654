"""Common parts of the monitors that report to a tracking service: run ids, configuration, tables of samples."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from strop.errors import MissingExtraError, RunFolderError
from strop.runs.rollout_file import prompt_text
from strop.runs.sample_table import choose_samples
from strop.types import RolloutGroup
from strop.workers.atomic_write import atomic_write

SAMPLE_COLUMNS = ("step", "task", "prompt", "expected", "response", "reward")
"""Columns of a table of samples."""

_FILE = "tracking.json"


def require_package(name: str) -> None:
    """Raise `MissingExtraError` if the package of a monitor is not installed."""
    if find_spec(name) is None:
        raise MissingExtraError(
            f"record.monitors lists {name}, which is not installed: pip install 'strop[{name}]'"
        )


def new_run_id() -> str:
    """A random run id that every service accepts: 16 lower-case hexadecimal digits."""
    return secrets.token_hex(8)


def load_run_id(folder: Path, service: str) -> str | None:
    """Id of this run at a service, from an earlier session; None in the first session."""
    return _load_ids(folder).get(service)


def save_run_id(folder: Path, service: str, run_id: str) -> None:
    """Store the id in the run folder, so that a resumed run continues the same run of the service."""
    ids = {**_load_ids(folder), service: run_id}
    atomic_write(folder / _FILE, json.dumps(ids, indent=2) + "\n")


def _load_ids(folder: Path) -> dict[str, str]:
    path = folder / _FILE
    if not path.exists():
        return {}
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError):
        raise RunFolderError(
            f"{path}: damaged, so the run's ids at the tracking services are unknown. Restore it, or delete it "
            "to start new runs there."
        ) from None


def flat_values(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Values by dotted key, as text."""
    flat: dict[str, str] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            flat |= flat_values(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = str(value)
    return flat


def sample_rows(step: int, groups: Sequence[RolloutGroup], count: int) -> list[list[Any]]:
    """Rows of `SAMPLE_COLUMNS`: the first response to each of `count` fixed tasks."""
    rows = []
    for task, rollout in choose_samples(groups, count):
        expected = "" if task.answer is None else str(task.answer)
        rows.append([step, task.id, prompt_text(task), expected, rollout.text, rollout.reward])
    return rows
