"""Columns of images in verl's data, and of media that Strop does not train on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.compat.ledger.data_columns import known_columns
from strop.compat.ledger.key_mapping import ForeignValues
from strop.config.schema import Run

NO_VIDEO = (
    "Strop trains on text and images, and data.train_files has this column; remove it if no task needs it"
)


def image_columns(foreign: ForeignValues, files: str = "data.train_files") -> dict[str, Any]:
    """The column of images, which rows may lack as in verl; empty if the files of a key have no such column.

    Of files that cannot be read here, the column is taken from a key that is set.
    """
    column = foreign["data.image_key"]
    if not column:
        return {}
    known = _known_columns(foreign, files)
    has_images = foreign.is_set("data.image_key") if known is None else column in known
    return {"images": column, "optional_columns": [column]} if has_images else {}


def write_image_columns(run: Run) -> Mapping[str, Any]:
    """Write the column of images."""
    return {"data.image_key": run.data.train.images} if run.data.train.images else {}


def require_no_video(foreign: ForeignValues) -> None:
    """Raise `ConfigError` if the training files have a column of videos or of audio, under its default name too."""
    for key in ("data.video_key", "data.audio_key"):
        if foreign.has_row(key) and not has_no_column(foreign, foreign[key]):
            raise foreign.error_for(key, f"{key}={foreign[key]!r} is not supported: {NO_VIDEO}.")


def has_no_column(foreign: ForeignValues, column: Any) -> bool:
    """Whether no training file that can be read has the column. Missing files are reported when they are read."""
    return not column or column not in (_known_columns(foreign, "data.train_files") or ())


def _known_columns(foreign: ForeignValues, key: str) -> frozenset[str] | None:
    """Columns of a key's files that can be read; None if none can."""
    files = foreign[key]
    return known_columns([files] if isinstance(files, str) else files or [])
