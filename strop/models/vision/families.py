"""Model families whose prompts may contain images. Imports no torch."""

from __future__ import annotations

GRID_FAMILIES = frozenset(("qwen2_vl", "qwen2_5_vl", "qwen3_vl"))
"""Values of `model_type` with one run of tokens per image, a grid of patches and three-dimensional positions."""
TILE_FAMILIES = frozenset(("idefics3", "smolvlm"))
"""Values of `model_type` that cut an image into tiles of one size, with tokens between them."""
IMAGE_FAMILIES = GRID_FAMILIES | TILE_FAMILIES
"""Values of `model_type` in config.json for which Strop accepts images."""
