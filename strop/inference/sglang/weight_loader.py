"""Loading of a weight file in SGLang's model processes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from strop.inference.weight_files import checkpoint_weights, read_weights

_CHECKPOINT_PREFIXES = {"model.language_model.": "model.", "model.visual.": "visual."}
"""Prefixes of the parts of a Qwen-VL model in checkpoints, by those in transformers."""


def load_weight_file(model: Any, named_tensors: Sequence[tuple[str, torch.Tensor]]) -> None:
    """Load a safetensors file, or a folder's files; each process keeps its shard.

    SGLang calls it with a list of named tensors; here the two names are the paths of the weights and of a folder for
    reports, and the tensors are empty. An exception would end SGLang's process, so it is reported in a file.
    """
    (weights, _), (reports, _) = named_tensors
    try:
        tensors = checkpoint_weights(read_weights(Path(weights)), model.config)
        model.load_weights((_checkpoint_name(name), tensor) for name, tensor in tensors)
        _discard_image_features()
    except Exception as error:  # noqa: BLE001  (raised in the process of the engine)
        report = Path(reports) / str(torch.distributed.get_rank())
        report.write_text(f"{type(error).__name__}: {error}", encoding="utf-8")


def _checkpoint_name(name: str) -> str:
    for prefix, replacement in _CHECKPOINT_PREFIXES.items():
        if name.startswith(prefix):
            return replacement + name.removeprefix(prefix)
    return name


def _discard_image_features() -> None:
    """Empty the cache of image features, which SGLang keeps when it flushes the KV cache."""
    from sglang.srt.managers import mm_schedule

    if mm_schedule.embedding_cache is not None:
        mm_schedule.embedding_cache.clear()
