"""Encoding many prompts, by one process or several."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from multiprocessing import get_context

from strop.data.chat import Prompt, PromptEncoder
from strop.errors import DataError
from strop.types import Ints

_PROMPTS_AT_ONCE = 256
_encoder: PromptEncoder
"""In a worker process: what it encodes with."""


def encode_prompts(encoder: PromptEncoder, prompts: Iterable[Prompt], workers: int) -> Iterator[Ints]:
    """The tokens of each prompt, in order, encoded by so many processes.

    Raises `DataError` for the first prompt that cannot be encoded.
    """
    chunks = _chunks(prompts)
    if workers == 1:
        for chunk in chunks:
            yield from encoder.encode_all(chunk)
        return
    pool = ProcessPoolExecutor(workers, get_context("spawn"), _start_worker, (encoder,))
    try:
        for encoded in _in_order(pool, chunks, ahead=2 * workers):
            yield from encoded
    except BrokenProcessPool:
        raise DataError(
            "A process that encodes prompts ended before its work was done: out of memory, killed, or "
            'started from a script that does not guard its main part with `if __name__ == "__main__":`. '
            "data.overlong_workers: 1 needs no such processes."
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _chunks(prompts: Iterable[Prompt]) -> Iterator[list[Prompt]]:
    iterator = iter(prompts)
    while chunk := list(islice(iterator, _PROMPTS_AT_ONCE)):
        yield chunk


def _in_order(pool: ProcessPoolExecutor, chunks: Iterator[list[Prompt]], ahead: int) -> Iterator[list[Ints]]:
    """Results in the order of the chunks, of which only a few are in memory at once."""
    waiting: deque[Future[list[Ints]]] = deque()
    for chunk in chunks:
        waiting.append(pool.submit(_encode, chunk))
        if len(waiting) > ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def _start_worker(encoder: PromptEncoder) -> None:
    global _encoder
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    _encoder = encoder


def _encode(chunk: list[Prompt]) -> list[Ints]:
    return _encoder.encode_all(chunk)
