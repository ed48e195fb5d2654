"""A learner's state between two updates: what a checkpoint's folder gets of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from strop.training.state import write_tensors


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Files that are not yet written. The tensors are the learner's own, until `copied`."""

    tensors: Mapping[str, Mapping[str, Tensor]]
    """The safetensors files, each by its tensors' names."""
    texts: Mapping[str, str]
    """The other files."""

    def copied(self) -> Snapshot:
        """The same on the CPU, in memory of its own: training may go on before it is written."""
        tensors = {
            file: {name: tensor.detach().to("cpu", copy=True) for name, tensor in named.items()}
            for file, named in self.tensors.items()
        }
        return Snapshot(tensors, self.texts)

    def write(self, folder: Path) -> None:
        """Write all files into an existing folder."""
        for file, named in self.tensors.items():
            write_tensors(folder / file, named)
        for file, text in self.texts.items():
            (folder / file).write_text(text)
