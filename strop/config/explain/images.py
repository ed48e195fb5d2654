"""Sentence about the images of a run: how many tokens of a prompt one of them is."""

from __future__ import annotations

import json
from typing import Any

from strop.config.paths import existing_path
from strop.config.schema import Run

_PROCESSOR_FILE = "preprocessor_config.json"


def describe_images(run: Run) -> str:
    """Return the columns of images and the token cost of an image; empty for a run without such a column."""
    tasksets = (*run.data.training_tasksets().values(), *run.data.eval, *run.data.demonstrations)
    columns = sorted({taskset.images for taskset in tasksets if taskset.images})
    if not columns:
        return ""
    return f"Prompts have the images of the column {' or '.join(columns)}; {_token_cost(run)}."


def _token_cost(run: Run) -> str:
    processor = _read_processor(run)
    size = processor.get("size") or {}
    least = run.data.images.min_pixels or processor.get("min_pixels") or size.get("shortest_edge")
    most = run.data.images.max_pixels or processor.get("max_pixels") or size.get("longest_edge")
    patch, merge = processor.get("patch_size"), processor.get("merge_size")
    if not (patch and merge and least and most):
        return f"how many tokens an image is, the model's {_PROCESSOR_FILE} decides"
    edge = patch * merge
    return (
        f"an image is one token per {edge} x {edge} pixels, {max(1, least // edge**2):,} to {most // edge**2:,} tokens "
        f"of data.max_prompt_tokens ({run.data.max_prompt_tokens:,}); a larger one is reduced to {most:,} pixels "
        "(data.images.max_pixels)"
    )


def _read_processor(run: Run) -> dict[str, Any]:
    """The settings of the model's image processor; empty for a model that is not on this machine."""
    folder = existing_path(run.model.path)
    try:
        found = json.loads((folder / _PROCESSOR_FILE).read_text(encoding="utf-8")) if folder else {}
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
