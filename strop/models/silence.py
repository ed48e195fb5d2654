"""Messages of transformers: progress bars and log messages are not for the user of a run, exceptions in one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from transformers.utils import logging


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
