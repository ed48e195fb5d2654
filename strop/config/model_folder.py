"""Faults of a model folder that its files show without reading a tensor, and without torch."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from strop.config.model_files import value_faults

_INDEX = "model.safetensors.index.json"
_PICKLES = ("*.bin", "*.pt", "*.pth")
_LENGTH_BYTES = 8
"""Bytes at the beginning of a safetensors file that hold the length of its header."""


def model_file_faults(folder: Path, path: str) -> Iterator[str]:
    """Yield what is wrong with the files of a model folder that has a config.json; `path` names it in messages."""
    if (fault := pickled_weights_fault(folder, path)) is not None:
        yield fault
    yield from value_faults(folder)
    config = _read_object(folder / "config.json")
    if config.get("is_encoder_decoder"):
        yield encoder_decoder_fault(path, str(config.get("model_type", "unknown")))
    yield from _weight_faults(folder)


def pickled_weights_fault(folder: Path, path: str) -> str | None:
    """The fault of a folder whose weights are pickled only."""
    if any(folder.glob("*.safetensors")):
        return None
    pickled = sorted(file.name for pattern in _PICKLES for file in folder.glob(pattern))
    if not pickled:
        return None
    return (
        f"the weights in {path} are pickled ({pickled[0]}). Loading a pickle can run any code, so Strop reads "
        "safetensors only. If you trust them, convert them once: "
        "AutoModelForCausalLM.from_pretrained(old).save_pretrained(new)."
    )


def encoder_decoder_fault(path: str, model_type: str) -> str:
    """The fault of a model with an encoder."""
    return (
        f"{path} is an encoder-decoder model ({model_type}), and Strop trains causal language models, which have a "
        "decoder only. Write the folder of such a model."
    )


def labels_fault(folder: Path, path: str) -> str | None:
    """The fault of a reward model that has another number of labels than one."""
    named = _read_object(folder / "config.json").get("id2label")
    labels = [str(label) for label in named.values()] if isinstance(named, dict) else ["LABEL_0", "LABEL_1"]
    return None if len(labels) == 1 else wrong_labels(path, labels)


def wrong_labels(path: str, labels: Sequence[str]) -> str:
    """The fault of a reward model with these labels."""
    return (
        f"the model in {path} has {len(labels)} labels ({', '.join(labels)}), not 1. Name a model for sequence "
        "classification with one label (num_labels in its config.json), whose logit is the reward."
    )


def _weight_faults(folder: Path) -> Iterator[str]:
    """Yield an error for each file that the index names and the folder lacks, and for one whose size is not that of its
    header, as an interrupted download leaves it."""
    tensors = _read_object(folder / _INDEX).get("weight_map")
    named = sorted({str(name) for name in tensors.values()}) if isinstance(tensors, dict) else []
    if missing := [name for name in named if not (folder / name).is_file()]:
        yield (
            f"{folder} lacks {missing[0]}, {len(missing)} of the {len(named)} files with weights that {_INDEX} names. "
            "Is the folder complete?"
        )
    for file in sorted(folder.glob("*.safetensors")):
        if (fault := _file_fault(file)) is not None:
            yield f"{file} is damaged or incomplete: {fault}. Copy or download the file again."


def _file_fault(file: Path) -> str | None:
    """The fault in the size or the header of a safetensors file."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(_LENGTH_BYTES), "little")
        if _LENGTH_BYTES + length > size:
            return f"it has {size} bytes, fewer than its header"
        try:
            header = json.loads(stream.read(length))
            ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
            wanted = _LENGTH_BYTES + length + max(ends, default=0)
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            return "its header cannot be read"
    return None if wanted == size else f"it has {size} bytes, and its header describes {wanted}"


def _read_object(file: Path) -> dict[str, Any]:
    """The object of a JSON file; empty for a file that is missing, cannot be read, or holds another value."""
    try:
        value = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
