"""Two halves of one run, started apart: what both must have been told alike, wherever each finds it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import PurePath
from typing import Any

from strop.config.compare import learned_by
from strop.config.redact import redact_text
from strop.config.schema import Run
from strop.config.schema.buffer import SqlBuffer
from strop.config.schema.synchronizer import CheckpointSync
from strop.models.contents import contents_of
from strop.run.folder import RunFolder
from strop.run.tasks import TrainTasks
from strop.sync.halves import Half, at_work

_OF_ONE_HALF = ("buffer", "data.auxiliary", "rollout.engine", "rollout.runners", "rollout.env")
"""Sections that may differ: where the buffer is to be reached from here, and what one half alone has to do
with, or is machinery of its machine."""
_CONTENTS = ("model.path", "data.train.path")
"""Compared by what is in them."""


def met(run: Run, tasks: TrainTasks, half: Half) -> AbstractContextManager[None]:
    """Inside, this half is at work, and the other one is of the same run. Raises `RunFolderError` where it
    is of another. In mode both there is nothing to compare: one run file was read for both."""
    section = run.synchronizer
    if run.mode == "both" or not isinstance(section, CheckpointSync):
        return nullcontext()
    return at_work(RunFolder.of(run).path / section.folder, half, said_by(run, tasks))


def meeting_place(run: Run) -> tuple[str, ...]:
    """Where one half looks for the other, for whoever reads its first lines; nothing in mode both."""
    section, buffer = run.synchronizer, run.buffer
    if run.mode == "both" or not isinstance(section, CheckpointSync):
        return ()
    folder = RunFolder.of(run).path
    other = "trainer" if run.mode == "explore" else "explorer"
    url = redact_text(buffer.url) if isinstance(buffer, SqlBuffer) and buffer.url else str(folder.absolute())
    weights = (folder / section.folder).absolute()
    return (f"the {other} is met in {weights} and in the buffer {buffer_name(run)!r} in {url}",)


def said_by(run: Run, tasks: TrainTasks) -> dict[str, str]:
    """What the other half must have been told too, field by field."""
    fields = {
        field: str(_without_folder(value))
        for field, value in learned_by(run).items()
        if field not in _CONTENTS and not any(f"{field}.".startswith(f"{one}.") for one in _OF_ONE_HALF)
    }
    return {
        "model.path": contents_of(run.model.path),
        "data.train": tasks.contents,
        "buffer.name": buffer_name(run),
        **fields,
    }


def buffer_name(run: Run) -> str:
    """By which the two find each other in a database of many runs."""
    return getattr(run.buffer, "name", None) or "/".join(RunFolder.of(run).path.absolute().parts[-2:])


def _without_folder(value: Any) -> Any:
    """The same with the last part alone of what may be a path."""
    if isinstance(value, Mapping):
        return {key: _without_folder(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_folder(item) for item in value]
    is_path = isinstance(value, str) and "/" in value and not {"\n", "{"} & set(value)
    return PurePath(value).name if is_path else value
