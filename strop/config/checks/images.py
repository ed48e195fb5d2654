"""Check of a run's images against its inference engine. Reads the model's config.json; imports no torch."""

from __future__ import annotations

from strop.config.image_families import IMAGE_FAMILIES, TILE_FAMILIES, read_model_file
from strop.config.schema.algorithm import OfflineAlgorithmConfig
from strop.config.schema.inference_engine import (
    ServerConnectionConfig,
    ServingEngineConfig,
    SglangEngineConfig,
)
from strop.config.schema.run import Run

_NATIVE = "Write `rollout.engine: native`, which samples from images"
_SGLANG_PATCH = 14
"""Width and height in pixels of the only patches that SGLang's Qwen2.5-VL takes."""


def image_engine_fault(run: Run) -> str | None:
    """Fault of a run that samples from images with an engine that does not take those of its model.

    None for a model that is not on this machine.
    """
    config = read_model_file(run.model.path, "config.json")
    family, engine = config.get("model_type"), run.rollout.engine
    if family not in IMAGE_FAMILIES or isinstance(run.algorithm, OfflineAlgorithmConfig):
        return None
    if isinstance(engine, ServerConnectionConfig):
        return (
            f"rollout.engine: {engine.type} sends text to a server, and the run has images. {_NATIVE}, or an engine of "
            "vllm or sglang that Strop starts."
        )
    if not isinstance(engine, ServingEngineConfig):
        return None
    if family in TILE_FAMILIES:
        return (
            f"rollout.engine: {engine.type} gets no images of {family} models from Strop, and the run has images. "
            f"{_NATIVE} of every family."
        )
    vision = config.get("vision_config") or {}
    patch = vision.get("patch_size", _SGLANG_PATCH)
    if isinstance(engine, SglangEngineConfig) and family == "qwen2_5_vl" and patch != _SGLANG_PATCH:
        return (
            f"rollout.engine: SGLang's Qwen2.5-VL takes patches of 14 x 14 pixels only, and "
            f"{run.model.path}/config.json has vision_config.patch_size {patch}. {_NATIVE} with patches of any size."
        )
    return None
