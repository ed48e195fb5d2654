"""A learner's state between two updates: what a checkpoint's folder gets of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from torch import Tensor

from strop.config.schema.run import Writers
from strop.models.shards import own_part
from strop.protocols import WrittenFile
from strop.training.state import write_tensors
from strop.training.writing import Files, side_by_side, write_files


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Files that are not yet written, by their names."""

    tensors: Mapping[str, Mapping[str, Tensor]]
    """Of the safetensors files, the learner's own tensors, by name."""
    texts: Mapping[str, str]
    """The other files."""
    writers: Writers
    """Who may write at the same time."""

    def begin(self, folder: Path, *, copied: bool = False) -> Callable[[], Mapping[str, WrittenFile]]:
        """See `strop.protocols.Snapshot`."""
        return partial(write_files, folder, self.files(copied=copied), together=side_by_side(self.writers))

    def files(self, *, copied: bool) -> Files:
        """What writes each file: of this process's tensors or parts of them, or of a copy made now."""
        tensors = {file: _held(named, copied=copied) for file, named in self.tensors.items()}
        return {
            **{file: partial(_write_text, text=text) for file, text in self.texts.items()},
            **{file: partial(write_tensors, tensors=named) for file, named in tensors.items()},
        }


def _write_text(path: Path, text: str) -> None:
    path.write_text(text)


def _held(named: Mapping[str, Tensor], *, copied: bool) -> dict[str, Tensor]:
    return {name: own_part(tensor.detach()).to("cpu", copy=copied) for name, tensor in named.items()}
