"""Weights written file by file: as transformers writes them, and with one file in memory at a time."""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from strop.models.formats.safetensors_files import write_weight_shards
from strop.models.lora import merged_weights
from tests.models.families import family_folder


@pytest.mark.parametrize("family", ["qwen2", "mixtral"])
def test_files_are_those_of_transformers(tmp_path: Path, family: str) -> None:
    """Mixtral's files have each expert's weights in tensors of their own."""
    model = AutoModelForCausalLM.from_pretrained(family_folder(tmp_path, family))
    model.save_pretrained(tmp_path / "theirs")
    (tmp_path / "ours").mkdir()
    write_weight_shards(model, merged_weights(model), tmp_path / "ours")
    theirs, ours = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("theirs", "ours"))
    assert ours == theirs

    parts = tmp_path / "parts"
    parts.mkdir()
    write_weight_shards(model, merged_weights(model), parts, max_shard_bytes=20_000)
    model.config.save_pretrained(parts)
    index = json.loads((parts / "model.safetensors.index.json").read_text())
    files = {path.name for path in parts.glob("*.safetensors")}
    assert len(files) > 2 and set(index["weight_map"].values()) == files
    loaded = AutoModelForCausalLM.from_pretrained(parts).state_dict()
    assert all(torch.equal(loaded[name], weight) for name, weight in model.state_dict().items())


def test_gathered_weights_are_freed_file_by_file(tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(family_folder(tmp_path, "qwen2"))
    alive: list[weakref.ref[Tensor]] = []
    most = 0

    def gathered() -> Iterator[tuple[str, Tensor]]:
        nonlocal most
        for number in range(40):
            most = max(most, sum(each() is not None for each in alive))
            tensor = torch.full((1000,), float(number))
            alive.append(weakref.ref(tensor))
            yield f"model.layers.{number}.weight", tensor

    write_weight_shards(model, gathered(), tmp_path, max_shard_bytes=20_000)
    assert len(alive) == 40 and most <= 8
