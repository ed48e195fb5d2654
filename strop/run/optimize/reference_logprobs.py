"""The reference model's log-probs of a whole dataset, computed once and cached in the run's folder."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from strop.config.schema.model import ModelConfig
from strop.data.offline_dataset import OfflineDataset
from strop.errors import RunFolderError
from strop.models.formats.safetensors_file import save_tensors
from strop.protocols import TrainingEngine
from strop.run.optimize.advantage_inputs import gather_targets, split_by_experience
from strop.types import Experience, FloatArray
from strop.workers.atomic_write import atomic_path

_TENSOR_NAME = "logprobs"

ReferenceLogprobs = Mapping[str, FloatArray]
"""[L] by the experience's id."""


def reference_logprobs(
    datasets: Sequence[OfflineDataset],
    engine: TrainingEngine,
    model: ModelConfig,
    folder: Path,
    check: Callable[[], None],
) -> ReferenceLogprobs:
    """Log-probs of every row: read from `folder` where an earlier start of the run wrote them, else computed.

    The engine must hold the run's initial weights: the reference is the initial model, and no second
    model is loaded. A cache file is named after a digest of its tokens and of the model's section, so
    that it is never used for another dataset. `check` is called between micro-batches and may raise.
    """
    found: dict[str, FloatArray] = {}
    for dataset in datasets:
        experiences = [experience for group in dataset.all_groups() for experience in group.experiences]
        path = folder / f"{_digest(experiences, model)}.safetensors"
        if not path.exists():
            computed = engine.logprobs(experiences, check=check)
            _write(path, gather_targets(computed, experiences))
        logprobs = split_by_experience(load_file(path)[_TENSOR_NAME], experiences)
        found |= {e.id: each for e, each in zip(experiences, logprobs, strict=True)}
    return found


def _digest(experiences: Sequence[Experience], model: ModelConfig) -> str:
    """Hash of the model's section, and of every token and its place in the loss mask."""
    digest = hashlib.blake2b(model.model_dump_json().encode(), digest_size=16)
    for experience in experiences:
        digest.update(len(experience.token_ids).to_bytes(8, "little"))
        digest.update(experience.token_ids.tobytes())
        digest.update(experience.loss_mask.tobytes())
    return digest.hexdigest()


def _write(path: Path, logprobs: torch.Tensor) -> None:
    """Write the file atomically. Raises `RunFolderError` if it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(path) as temporary:
            save_tensors({_TENSOR_NAME: logprobs}, temporary)
    except (OSError, SafetensorError) as error:
        raise RunFolderError(
            f"The reference model's log-probs cannot be written to {path}: "
            f"{getattr(error, 'strerror', None) or error}. Free space on that disk or change `output`."
        ) from error
