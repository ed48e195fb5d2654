"""Encoding in worker processes: order, a bounded number of pending chunks, and a worker that dies."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from transformers import PreTrainedTokenizerBase

from strop.data.encoding.chat_template import ChatPrompt, PromptEncoder
from strop.data.encoding.parallel_encoding import encode_prompts
from strop.errors import DataError


class Dying(PromptEncoder):
    """An encoder whose process is killed."""

    def encode_longer(self, prompts: object, limit: int) -> list:
        os.kill(os.getpid(), signal.SIGKILL)
        return []


def prompts(count: int, taken: list[int]) -> Iterator[ChatPrompt]:
    for i in range(count):
        taken.append(i)
        yield ChatPrompt(f"row {i}", ({"role": "user", "content": str(i)},))


@pytest.mark.slow
def test_prompts_are_read_only_as_fast_as_they_are_encoded(tokenizer: PreTrainedTokenizerBase) -> None:
    taken: list[int] = []
    encoded = encode_prompts(PromptEncoder(tokenizer, "none"), prompts(20_000, taken), workers=2, limit=0)
    assert tokenizer.decode(next(encoded)) == "0"
    assert len(taken) <= 256 * 6
    encoded.close()


def test_a_worker_that_dies_is_reported(tokenizer: PreTrainedTokenizerBase) -> None:
    with pytest.raises(DataError, match=r"ended before its work was done.*tokenize_workers: 1"):
        list(encode_prompts(Dying(tokenizer, "none"), prompts(10, []), workers=2, limit=0))
