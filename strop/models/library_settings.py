"""Settings of libraries: messages of transformers, and the memory that oneDNN and the C library keep on a CPU."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

from transformers.utils import logging

_CAPACITY = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"
_PRIMITIVES = "64"
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's `mallopt`."""
_TRIM_BYTES = 64 << 20
_MMAP_BYTES = 8 << 20


def one_line(error: Exception) -> str:
    """An exception of a library as a part of a sentence: its class and the start of its message."""
    text = " ".join(str(error).split()).rstrip(".")
    return f"{type(error).__name__}: {text if len(text) <= 300 else f'{text[:300]}...'}"


@contextmanager
def silence_transformers() -> Iterator[None]:
    """Disable the progress bars and log messages of transformers in the block."""
    progress_bar, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if progress_bar:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def limit_cpu_memory() -> None:
    """Limit oneDNN's cache and the C library's heap, unless the environment has settings of them."""
    _limit_primitive_cache()
    _return_large_blocks()


def _limit_primitive_cache() -> None:
    """Let oneDNN keep 64 compiled products.

    It compiles a product for each shape, of which almost every micro-batch has new ones, and keeps 1,024: about 30 MB
    more with every step, for shapes that do not come back. It reads the variable at the first product of a process.
    """
    os.environ.setdefault(_CAPACITY, _PRIMITIVES)


def _return_large_blocks() -> None:
    """Let glibc return each freed block of 8 MiB or more to the system; does nothing with another C library.

    By default glibc raises this limit to 32 MiB, and keeps smaller blocks in its heap. Torch asks for aligned blocks,
    which do not fit where one of the same size was freed, and small blocks that live on divide the rest: the heap
    grows to twice what is in use. Setting one limit ends the automatic increase of both.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or any(n.startswith("MALLOC_") or n == "GLIBC_TUNABLES" for n in os.environ):
        return
    mallopt(_MMAP_THRESHOLD, _MMAP_BYTES)
    mallopt(_TRIM_THRESHOLD, _TRIM_BYTES)
