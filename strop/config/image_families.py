"""Model families whose prompts may contain images. Imports no torch."""

from __future__ import annotations

import json
from typing import Any

from strop.config.paths import existing_path

GRID_FAMILIES = frozenset(("qwen2_vl", "qwen2_5_vl", "qwen3_vl"))
"""Values of `model_type` with one run of tokens per image, a grid of patches and three-dimensional positions."""
TILE_FAMILIES = frozenset(("idefics3", "smolvlm", "gemma3", "internvl"))
"""Values of `model_type` that scale an image to one or several tiles of one size, with one position per token."""
IMAGE_FAMILIES = GRID_FAMILIES | TILE_FAMILIES
"""Values of `model_type` in config.json for which Strop accepts images."""


def folder_takes_images(path: str) -> bool:
    """Whether a model folder on this machine is of such a family.

    False for a name on the Hub, and for a config.json that cannot be read, which loading the model reports.
    """
    return read_model_file(path, "config.json").get("model_type") in IMAGE_FAMILIES


def read_model_file(path: str, name: str) -> dict[str, Any]:
    """Return the JSON object of a file in a model folder; empty for a name on the Hub, and if it cannot be read."""
    folder = existing_path(path)
    try:
        found = json.loads((folder / name).read_text(encoding="utf-8")) if folder else {}
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
