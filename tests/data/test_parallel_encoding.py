"""Encoding in worker processes: order, a bounded number of pending chunks, and a worker that dies."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from strop.data.encoding.chat_template import ChatPrompt, PromptEncoder
from strop.data.encoding.prompt_store import encode_prompts
from strop.errors import DataError, PlacementError
from strop.pipelines.tasks.execution import local_processes


class Dying(PromptEncoder):
    """An encoder whose process is killed."""

    def encode_longer(self, prompts: object, limit: int) -> list:
        os.kill(os.getpid(), signal.SIGKILL)
        return []


def prompts(contents: list[str], taken: list[int]) -> Iterator[ChatPrompt]:
    for number, content in enumerate(contents):
        taken.append(number)
        yield ChatPrompt(f"row {number}", ({"role": "user", "content": content},))


@pytest.mark.slow
def test_prompts_are_read_as_fast_as_they_are_encoded_and_an_error_names_its_row(tokenizer):
    encoder = PromptEncoder(tokenizer, "{% if messages[0].content == 'bad' %}{{ bad.bad.bad }}{% endif %}x")
    taken: list[int] = []
    contents = [*map(str, range(3900)), "bad", "4"]
    encoded = encode_prompts(encoder, prompts(contents, taken), workers=2, limit=0)
    assert tokenizer.decode(next(encoded)) == "x"
    assert len(taken) <= 256 * 6
    with pytest.raises(DataError, match="row 3900: the chat template cannot render this prompt: "):
        list(encoded)


@pytest.mark.parametrize(
    ("processes", "key"),
    [
        (
            lambda: list(encode_prompts(Dying(None, "none"), prompts(["a"], []), workers=2, limit=0)),
            "tokenize_workers",
        ),
        (lambda: local_processes(2).__enter__(), "pipeline.processes"),
    ],
)
def test_without_shared_memory_the_key_is_named(processes, key, monkeypatch):
    """A fake: semaphores cannot be created, as without /dev/shm."""

    def refuse(*_: object, **__: object) -> None:
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr("multiprocessing.synchronize.SemLock.__init__", refuse)
    with pytest.raises(
        PlacementError, match=rf"^data\.{key}: .* Mount a tmpfs at /dev/shm .* or write data\.{key}: 1"
    ):
        processes()


def test_a_worker_that_dies_is_reported(tokenizer):
    with pytest.raises(DataError, match=r"ended before its work was done.*tokenize_workers: 1"):
        list(encode_prompts(Dying(tokenizer, "none"), prompts(["a"] * 10, []), workers=2, limit=0))
