"""Writing of safetensors files: one file, and a model's weights in shards, each as soon as its weights are gathered."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

_MAX_SHARD_BYTES = 2 * 2**30
"""Maximum size of a file of weights, unless one tensor is larger."""
_STEM, _INDEX_FILE = "model", "model.safetensors.index.json"
_LAYER = re.compile(r"^.*?\.\d+\.")
"""The part of a weight's name that its layer's weights share."""


def save_tensors(
    tensors: Mapping[str, Tensor], path: Path, metadata: Mapping[str, str] | None = None
) -> None:
    """Write contiguous tensors by name. safetensors makes its files readable by their owner only; these have the
    permissions that the umask gives, as the files next to them have."""
    path.touch()
    permissions = path.stat().st_mode
    save_file(dict(tensors), path, dict(metadata) if metadata else None)
    path.chmod(permissions)


def write_weight_shards(
    model: PreTrainedModel,
    weights: Iterable[tuple[str, Tensor]],
    folder: Path,
    *,
    dtype_of: Callable[[str, Tensor], torch.dtype] = lambda name, tensor: tensor.dtype,
    max_shard_bytes: int = _MAX_SHARD_BYTES,
) -> None:
    """Write weights under Hugging Face's names, as transformers loads them; one file in memory at a time.

    transformers keeps the weights of some families in other tensors than their files do, such as those of all experts
    of a layer in one, so that each layer is converted back as a whole. `dtype_of` gives the data type of a tensor by
    its name in the files.
    """
    files: list[tuple[Path, dict[str, int]]] = []
    shard: dict[str, Tensor] = {}
    size = 0

    def write() -> None:
        path = folder / f"{_STEM}-{len(files):05d}.safetensors"
        save_tensors(shard, path, {"format": "pt"})
        files.append((path, {name: tensor.nbytes for name, tensor in shard.items()}))
        shard.clear()

    for name, converted in _converted(model, weights):
        tensor = converted.to(dtype_of(name, converted))
        if shard and size + tensor.nbytes > max_shard_bytes:
            write()
            size = 0
        shard[name] = tensor
        size += tensor.nbytes
    write()
    _name_files(files, folder)


def _converted(model: PreTrainedModel, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """The weights as files have them, on the CPU; those of a layer are converted together."""
    ignored = model._keys_to_ignore_on_save or ()
    for _, layer in groupby(weights, key=lambda weight: _layer_of(weight[0])):
        own = {name: tensor.detach().cpu() for name, tensor in layer if name not in ignored}
        for name, tensor in revert_weight_conversion(model, own).items():
            yield name, tensor.contiguous()


def _layer_of(name: str) -> str:
    found = _LAYER.match(name)
    return found[0] if found else ""


def _name_files(files: list[tuple[Path, dict[str, int]]], folder: Path) -> None:
    """Name the files as transformers does, now that their number is known, and write the index of several."""
    if len(files) == 1:
        files[0][0].rename(folder / f"{_STEM}.safetensors")
        return
    places: dict[str, str] = {}
    for number, (path, sizes) in enumerate(files, 1):
        name = f"{_STEM}-{number:05d}-of-{len(files):05d}.safetensors"
        path.rename(folder / name)
        places |= dict.fromkeys(sizes, name)
    total = sum(sum(sizes.values()) for _, sizes in files)
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}
    (folder / _INDEX_FILE).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")
