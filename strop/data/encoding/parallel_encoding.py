"""Encoding of many prompts, by one process or several."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice

from strop.data.encoding.chat_template import ChatPrompt, PromptEncoder
from strop.errors import DataError
from strop.types import IntArray
from strop.workers.child_process import process_pool

_PROMPTS_PER_CHUNK = 256
_encoder: PromptEncoder
"""The encoder of a worker process."""
_limit: int
"""Number of tokens that need no encoding, where a bound proves them."""


def encode_prompts(
    encoder: PromptEncoder, prompts: Iterable[ChatPrompt], workers: int, *, limit: int
) -> Iterator[IntArray | None]:
    """The tokens of each prompt, in order, by `workers` processes (1: this process); None for a prompt that provably
    has at most `limit` tokens.

    Raises `DataError` for the first prompt that cannot be encoded.
    """
    chunks = _chunks(prompts)
    if workers == 1:
        for chunk in chunks:
            yield from encoder.encode_longer(chunk, limit)
        return
    pool = process_pool(workers, "data.tokenize_workers", _start_worker, (encoder, limit))
    try:
        for encoded in _in_submission_order(pool, chunks, ahead=2 * workers):
            yield from encoded
    except BrokenProcessPool:
        raise DataError(
            "A process that encodes prompts ended before its work was done: it ran out of memory, was "
            "killed, or "
            'was started by a script without the guard `if __name__ == "__main__":`. '
            "data.tokenize_workers: 1 needs no such processes."
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _chunks(prompts: Iterable[ChatPrompt]) -> Iterator[list[ChatPrompt]]:
    iterator = iter(prompts)
    while chunk := list(islice(iterator, _PROMPTS_PER_CHUNK)):
        yield chunk


def _in_submission_order(
    pool: ProcessPoolExecutor, chunks: Iterator[list[ChatPrompt]], ahead: int
) -> Iterator[list[IntArray | None]]:
    """Results in the order of the chunks; at most `ahead` chunks wait in memory."""
    waiting: deque[Future[list[IntArray | None]]] = deque()
    for chunk in chunks:
        waiting.append(pool.submit(_encode, chunk))
        if len(waiting) > ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def _start_worker(encoder: PromptEncoder, limit: int) -> None:
    global _encoder, _limit
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    _encoder, _limit = encoder, limit


def _encode(chunk: list[ChatPrompt]) -> list[IntArray | None]:
    return _encoder.encode_longer(chunk, _limit)
