"""The state of a model and its optimizer in this process, as files of a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from torch import Tensor

from strop.config.schema.record import SaveConcurrency
from strop.models.dtensor import local_tensor
from strop.protocols import FileChecksum
from strop.training.checkpoints.file_writer import FileWriters, write_files, writes_in_parallel
from strop.training.checkpoints.sharded_tensors import parts_metadata
from strop.training.checkpoints.tensor_files import write_tensors


@dataclass(frozen=True, slots=True)
class LocalSnapshot:
    """Files of a checkpoint before they are written."""

    tensors: Mapping[str, Mapping[str, Tensor]]
    """Tensors of each safetensors file, by name; not copies."""
    texts: Mapping[str, str]
    """Contents of the text files, by file name."""
    save_concurrency: SaveConcurrency
    """Which ranks and threads write at the same time."""
    own_files: frozenset[str] = frozenset()
    """Files of whole tensors that no other rank has, so that this one writes all of them."""

    def begin_write(self, folder: Path, *, copied: bool = False) -> Callable[[], Mapping[str, FileChecksum]]:
        """See `strop.protocols.EngineSnapshot`."""
        return partial(
            write_files,
            folder,
            self.file_writers(copied=copied),
            parallel=writes_in_parallel(self.save_concurrency),
        )

    def file_writers(self, *, copied: bool) -> FileWriters:
        """Writer of each file, for this process's tensors or shards, or for a copy made now."""
        tensors = {file: _held(named, copied=copied) for file, named in self.tensors.items()}
        return {
            **{file: partial(_write_text, text=text) for file, text in self.texts.items()},
            **{
                file: partial(write_tensors, tensors=named, metadata=parts_metadata(self.tensors[file]))
                for file, named in tensors.items()
            },
        }


def _write_text(path: Path, text: str) -> None:
    path.write_text(text)


def _held(named: Mapping[str, Tensor], *, copied: bool) -> dict[str, Tensor]:
    return {name: local_tensor(tensor.detach()).to("cpu", copy=copied) for name, tensor in named.items()}
