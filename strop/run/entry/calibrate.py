"""Measurement of a run's steps on this machine: a short copy of the run, whose metrics are kept in the cache."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from strop.config.paths import expand_user
from strop.config.redact import HIDDEN
from strop.config.save import resolved_text
from strop.config.schema.buffer import SqlBufferConfig
from strop.config.schema.run import Run
from strop.config.units import Amount
from strop.data.sources.cache import cache_folder, cache_key, find_entry, new_entry
from strop.errors import ConfigError, TrainingError
from strop.plan.fit import Calibration, calibration_of
from strop.runs.folder import RunFolder

STEPS = 3
"""Steps of the short copy; the first one is not measured."""
_OTHER_FIELDS = {
    "project",
    "name",
    "output",
    "folder",
    "checkpoint",
    "export",
    "evaluate",
    "record",
    "bench",
    "stages",
}
"""Sections that do not change a step."""
_LAST_LINES = 20


def known_calibration(run: Run) -> Calibration | None:
    """The calibration of this run, or of one that differs in its duration only, on this machine; None without one."""
    found = find_entry(_key(run))
    return None if found is None else Calibration(**found[1])


def calibrate(run: Run) -> Calibration:
    """Train a copy of the run for three steps in a temporary folder, and keep the mean of the last two.

    Nothing is evaluated, and no monitor sees it. Raises ConfigError for a run that cannot be copied, and TrainingError
    if the copy fails.
    """
    if run.mode != "both":
        raise ConfigError(
            f"strop plan --calibrate measures runs of `mode: both`, and this one has `mode: {run.mode}`."
        )
    shared = list(_shared_keys(run))
    if shared:
        raise ConfigError(
            f"strop plan --calibrate trains a copy of the run, which would share the run's own data at "
            f"{', '.join(shared)}. Override these keys for the calibration."
        )
    with tempfile.TemporaryDirectory(prefix="strop-calibration-") as name:
        folder = Path(name)
        rows = _train(_short_copy(run, folder), folder)
    found = calibration_of(rows, datetime.now(UTC).date().isoformat())
    key = _key(run)
    shutil.rmtree(cache_folder() / key, ignore_errors=True)
    with new_entry(key) as entry:
        entry.facts |= asdict(found)
    return found


def _shared_keys(run: Run) -> Iterator[str]:
    """Keys whose data is outside of the run's folder and changes during the run."""
    if run.data.queue is not None:
        yield "data.queue"
    if isinstance(run.buffer, SqlBufferConfig) and run.buffer.url is not None:
        yield "buffer.url"
    for key, path in (
        ("buffer.backup", getattr(run.buffer, "backup", None)),
        ("buffer.path", getattr(run.buffer, "path", None)),
        ("synchronizer.folder", getattr(run.synchronizer, "folder", None)),
    ):
        if path is not None and expand_user(path).is_absolute():
            yield key


def _short_copy(run: Run, folder: Path) -> Run:
    trainer = run.trainer.model_copy(update={"duration": Amount(STEPS, "steps"), "stop_after": None})
    never: dict[str, Any] = {"every": None}
    return run.model_copy(
        update={
            "folder": str(folder / "run"),
            "trainer": trainer,
            "checkpoint": run.checkpoint.model_copy(
                update=never | {"save_optimizer": False, "best": None, "mirror": None, "export": False}
            ),
            "evaluate": run.evaluate.model_copy(
                update=never | {"at_start": False, "at_end": False, "stop_when": None}
            ),
            "record": run.record.model_copy(update={"monitors": (), "report": False}),
        }
    )


def _train(run: Run, folder: Path) -> list[dict[str, float]]:
    """The metrics of each step."""
    text = resolved_text(run)
    if HIDDEN in text:
        raise ConfigError(
            "The run file has a password or key, which is not copied for a calibration. Write it as "
            "${oc.env:NAME} and set the environment variable NAME."
        )
    file = folder / "run.yaml"
    file.write_text(text, encoding="utf-8")
    last: deque[str] = deque(maxlen=_LAST_LINES)
    with subprocess.Popen(
        [sys.executable, "-m", "strop", "train", str(file)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        last.extend(process.stdout)
    metrics = RunFolder.of(run).metrics
    if process.returncode or not metrics.exists():
        raise TrainingError(f"The calibration's steps failed:\n{''.join(last).strip()}")
    rows = [json.loads(line) for line in metrics.read_text(encoding="utf-8").split("\n") if line]
    return [row for row in rows if "time/step_seconds" in row]


def _key(run: Run) -> str:
    """A name for what determines a step: the run file without its duration and folders, and the machine."""
    values = run.model_dump(mode="json", exclude=_OTHER_FIELDS)
    for field in ("duration", "stop_after"):
        values["trainer"].pop(field)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    machine = (
        platform.node(),
        cores,
        os.environ.get("OMP_NUM_THREADS"),
        os.environ.get("CUDA_VISIBLE_DEVICES"),
    )
    return cache_key("calibration", values, machine)
