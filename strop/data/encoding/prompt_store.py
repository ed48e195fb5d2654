"""Tokens of a taskset's prompts: encoded when they are needed, in the background before that, and kept for later.

Many prompts at once, such as those of a check, are encoded by one process or several.
"""

from __future__ import annotations

import os
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from threading import Lock

from strop.data.encoding.chat_template import ChatPrompt, PromptEncoder
from strop.data.encoding.truncation import OverlongRule, fit_prompt
from strop.errors import DataError
from strop.types import IntArray
from strop.workers.child_process import process_pool

MAX_KEPT_TOKENS = 16 << 20
"""Largest number of tokens that are kept, 64 MiB; older prompts are encoded again when they are needed."""
_LARGEST_BATCH = 1024
_PROMPTS_PER_CHUNK = 256


class PromptStore:
    """Encodes the prompts of rows, truncated to `limit` where the rule says so. Thread-safe.

    Consumes    rows of the taskset, through `read`.
    Waits for   nothing; `prepare` encodes in a thread of its own; `get` raises its failures.
    """

    def __init__(
        self, read: Callable[[int], ChatPrompt], encoder: PromptEncoder | None, rule: OverlongRule, limit: int
    ) -> None:
        """`read` returns the prompt of a row; without an `encoder`, all prompts are put with `keep`."""
        self._read = read
        self._encoder = encoder
        self._rule: OverlongRule = rule
        self._limit = limit
        self._kept: OrderedDict[int, IntArray] = OrderedDict()
        self._kept_tokens = 0
        self._lock = Lock()
        self._thread: ThreadPoolExecutor | None = None
        self._ahead: Future[None] | None = None

    def keep(self, row: int, token_ids: IntArray) -> None:
        """Keep the tokens of a row's whole prompt, and drop the oldest ones above the limit."""
        fitted = fit_prompt(token_ids, self._rule, self._limit)
        with self._lock:
            if row not in self._kept:
                self._kept[row] = fitted
                self._kept_tokens += len(fitted)
            while self._encoder is not None and self._kept_tokens > MAX_KEPT_TOKENS and len(self._kept) > 1:
                self._kept_tokens -= len(self._kept.popitem(last=False)[1])

    def get(self, rows: Sequence[int]) -> list[IntArray]:
        """[P] each: the tokens of the prompts. Raises `DataError` for one that cannot be encoded."""
        if self._ahead is not None:
            self._ahead.result()
        with self._lock:
            found = {row: self._kept[row] for row in rows if row in self._kept}
        missing = [row for row in dict.fromkeys(rows) if row not in found]
        for first in range(0, len(missing), _LARGEST_BATCH):
            batch = missing[first : first + _LARGEST_BATCH]
            found |= zip(batch, self._encode(batch), strict=True)
        return [found[row] for row in rows]

    def prepare(self, rows: Sequence[int]) -> None:
        """Encode prompts in the background, unless they are kept already."""
        if self._encoder is None:
            return
        with self._lock:
            missing = [row for row in rows[:_LARGEST_BATCH] if row not in self._kept]
        if missing:
            self._thread = self._thread or ThreadPoolExecutor(1, "encode-prompts")
            self._ahead = self._thread.submit(self._prepare, missing)

    def _prepare(self, rows: Sequence[int]) -> None:
        try:
            self._encode(rows)
        except (DataError, RuntimeError):  # `get` encodes them again, and raises what remains
            return

    def _encode(self, rows: Sequence[int]) -> list[IntArray]:
        assert self._encoder is not None
        encoded = self._encoder.encode_all([self._read(row) for row in rows])
        for row, token_ids in zip(rows, encoded, strict=True):
            self.keep(row, token_ids)
        return [fit_prompt(token_ids, self._rule, self._limit) for token_ids in encoded]


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
