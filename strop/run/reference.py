"""The reference's log-probs of a whole dataset: computed once, and kept in the run's folder."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from strop.config.schema.model import Model
from strop.data.answers import AnswerSet
from strop.run.passes import Passes
from strop.run.scoring import by_experience, targets_of
from strop.types import Experience, Floats

_NAME = "logprobs"

Reference = Mapping[str, Floats]
"""[L] by the experience's id."""


def reference_logprobs(
    sets: Sequence[AnswerSet], passes: Passes, model: Model, folder: Path, stop: Callable[[], None]
) -> Reference:
    """Those that are in `folder` from an earlier start, and for the others one pass by the model as it is.

    So the engine must hold the weights of the run's start: the reference is that model, and no second
    one is needed. A file is named after the tokens and the model, so that it is never another dataset's.
    `stop` is called between micro-batches, and may raise.
    """
    found: dict[str, Floats] = {}
    for answers in sets:
        experiences = [experience for group in answers.all() for experience in group.experiences]
        path = folder / f"{_digest(experiences, model)}.safetensors"
        if not path.exists():
            computed = passes.logprobs(experiences, check=stop)
            _write(path, targets_of(computed, experiences))
        logprobs = by_experience(load_file(path)[_NAME], experiences)
        found |= {e.id: each for e, each in zip(experiences, logprobs, strict=True)}
    return found


def _digest(experiences: Sequence[Experience], model: Model) -> str:
    """Of the model's section, and of every token and whether it is a target."""
    digest = hashlib.blake2b(model.model_dump_json().encode(), digest_size=16)
    for experience in experiences:
        digest.update(len(experience.token_ids).to_bytes(8, "little"))
        digest.update(experience.token_ids.tobytes())
        digest.update(experience.loss_mask.tobytes())
    return digest.hexdigest()


def _write(path: Path, logprobs: torch.Tensor) -> None:
    """Whole, or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.tmp")
    save_file({_NAME: logprobs}, beside)
    with beside.open("rb") as file:
        os.fsync(file.fileno())
    beside.replace(path)
