"""Sentence about the images of a run: how many tokens of a prompt one of them is."""

from __future__ import annotations

from math import ceil
from typing import Any

from strop.config.checks.data import image_engine_fault
from strop.config.model_files import read_model_file
from strop.config.schema import Run

_PROCESSOR_FILE = "preprocessor_config.json"


def describe_images(run: Run) -> str:
    """Return the columns of images and the token cost of an image; empty for a run without such a column."""
    tasksets = (*run.data.training_tasksets().values(), *run.data.eval, *run.data.demonstrations)
    columns = sorted({taskset.images for taskset in tasksets if taskset.images})
    if not columns:
        return ""
    fault = image_engine_fault(run)
    cost = f"Prompts have the images of the column {' or '.join(columns)}; {_token_cost(run)}."
    return f"{cost} {fault}" if fault else cost


def _token_cost(run: Run) -> str:
    processor = read_model_file(run.model.path, _PROCESSOR_FILE)
    if tiles := _tile_cost(read_model_file(run.model.path, "config.json"), processor):
        return (
            f"an image is {tiles}; all count toward data.max_prompt_tokens ({run.data.max_prompt_tokens:,})"
        )
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


def _tile_cost(config: dict[str, Any], processor: dict[str, Any]) -> str:
    """Pad tokens of an image in a family with tiles of one size; empty for others, and where the files do not say."""
    vision, family = config.get("vision_config") or {}, config.get("model_type")
    if family == "gemma3" and (count := config.get("mm_tokens_per_image")):
        return f"{count:,} tokens whatever its size, and its start and end"
    if family == "internvl" and (count := config.get("image_seq_length")):
        most = processor.get("max_patches", 12)
        return (
            f"{count:,} tokens per tile, 1 to {most} tiles and for several tiles the whole image, and its start and "
            "end"
        )
    edge = (processor.get("max_image_size") or {}).get("longest_edge")
    size = (processor.get("size") or {}).get("longest_edge")
    width, patch = vision.get("image_size"), vision.get("patch_size")
    if family in ("idefics3", "smolvlm") and edge and size and width and patch:
        count = (width // patch // config.get("scale_factor", 2)) ** 2
        return (
            f"{count:,} tokens per tile, at most {ceil(size / edge) ** 2} tiles and the whole image, and the tokens "
            "that name the row and column of a tile"
        )
    return ""
