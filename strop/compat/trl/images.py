"""Images of TRL's data sets: the columns `images` (a list) and `image` (one image), by which TRL knows such data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.compat.ledger.data_columns import known_columns
from strop.compat.ledger.key_mapping import ForeignValues
from strop.config.image_families import folder_takes_images
from strop.config.schema import Run
from strop.errors import ConfigError

_COLUMNS = ("image", "images")
"""TRL takes the first one that the rows have."""
FIELDS = ("data.train.images", "data.train.optional_columns", "data.images.marker", "data.images.unmarked")
"""Run-file fields that the columns decide."""


def image_columns(foreign: ForeignValues) -> dict[str, Any]:
    """Taskset fields of the column of images; empty if the data set's file has none, or is not on this machine."""
    known = known_columns([foreign["dataset_name"]] if isinstance(foreign["dataset_name"], str) else [])
    column = next((name for name in _COLUMNS if name in (known or ())), None)
    return {} if column is None else {"images": column, "optional_columns": [column]}


def image_places(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Run-file fields of the places of images: the parts of a message without an image, else before the text of the
    first user message; `<image>` is ordinary text."""
    return {"data.images.marker": None, "data.images.unmarked": "start"} if "images" in columns else {}


def unknown_images(foreign: ForeignValues) -> str | None:
    """A notice if the model reads images, and the columns of its data set are not known here."""
    path, model = foreign["dataset_name"], foreign["model_name_or_path"]
    if not isinstance(path, str) or known_columns([path]) is not None:
        return None
    if not isinstance(model, str) or not folder_takes_images(model):
        return None
    return (
        "the model reads images, and the columns of this data set are not known before it is loaded: its images are "
        "not used. Write data.train.images in a run file (strop convert), or name a Parquet or JSON-lines file"
    )


def require_trl_columns(run: Run) -> None:
    """Raise ConfigError for a column of images, or a place of images, that TRL's data sets cannot have."""
    column, images = run.data.train.images, run.data.images
    if column is None:
        return
    if column not in _COLUMNS:
        raise ConfigError(
            f"data.train.images is {column!r}; TRL reads images from the column images or image."
        )
    if images.marker is not None or images.unmarked != "start":
        raise ConfigError(
            "TRL puts images before the first user message's text; data.images has marker: null and unmarked: start "
            "for that."
        )
