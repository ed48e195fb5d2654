"""A chat model for endpoints."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import torch

from strop.config.schema.inference_engine import NativeEngineConfig
from strop.config.schema.rollout import AuxiliaryModelConfig
from strop.inference.auxiliary_model import AuxiliaryModel
from strop.models.tiny import make_model


@contextmanager
def tiny_model(folder: Path) -> Iterator[AuxiliaryModel]:
    """A model named `tiny`, which is made in a new folder."""
    make_model(folder, ["two and two is four"], vocab_size=320, hidden_size=16, layers=1, heads=2)
    section = AuxiliaryModelConfig(
        name="tiny",
        path=str(folder),
        max_response_tokens=2,
        engine=NativeEngineConfig(kv_cache_tokens=4096),
    )
    with closing(AuxiliaryModel(section, torch.device("cpu"), seed=1)) as model:
        yield model
