"""Reader of a GGUF file's fields, once per process."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any


def read_gguf(path: str | Path) -> Any:
    """The `GGUFReader` of a file as it is now. Its fields take seconds to read where a vocabulary is among them."""
    file = Path(path)
    written = file.stat()
    return _read(file, written.st_mtime_ns, written.st_size)


@lru_cache(maxsize=1)
def _read(file: Path, written_at: int, size: int) -> Any:
    import numpy as np
    from gguf.gguf_reader import GGUFReader

    class PlainReader(GGUFReader):
        """Slices plain arrays, which is several times faster than slices of a memory map."""

        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, value.view(np.ndarray) if name == "data" else value)

    return PlainReader(file)
