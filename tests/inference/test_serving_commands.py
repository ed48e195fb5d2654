"""Calls of a serving library that loses a process meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from strop.errors import EngineLostError, InferenceError
from strop.inference.serving import engine as serving
from strop.inference.serving.backend import SERVING_CAPABILITIES
from strop.inference.serving.engine import ServingEngine
from strop.types import Completion, SampleRequest, SamplingParams

from .helpers import requests_for


class DyingBackend:
    """A library one of whose processes has ended, which it reports when it is asked for the fourth time."""

    name = "stub"
    capabilities = SERVING_CAPABILITIES
    report_seconds = 10.0

    def __init__(self, *, answers: bool) -> None:
        self.answers = answers
        self.asked = 0

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def hold(self) -> None:
        if self.answers:
            raise RuntimeError("Call to pause_scheduler method failed: cancelled")
        await asyncio.Event().wait()

    def check(self, request: SampleRequest) -> None: ...

    async def generate(self, request: SampleRequest) -> Completion:
        await asyncio.Event().wait()
        raise AssertionError

    def lost(self, error: Exception) -> EngineLostError | None:
        self.asked += 1
        return EngineLostError("a process of the stub has ended") if self.asked > 3 else None


@contextmanager
def started(backend: Any) -> Iterator[ServingEngine]:
    with closing(ServingEngine(backend)) as engine:
        engine.start()
        yield engine


@pytest.mark.parametrize("answers", [True, False])
def test_a_command_ends_with_the_process_that_it_was_sent_to(answers: bool, monkeypatch: pytest.MonkeyPatch):
    """vLLM answers a command of that moment with an error of its own, or never."""
    monkeypatch.setattr(serving, "_WATCH_SECONDS", 0.01)
    backend = DyingBackend(answers=answers)
    with started(backend) as engine, pytest.raises(EngineLostError, match="a process of the stub has ended"):
        engine.pause()
    assert backend.asked >= 4


def test_requests_end_with_a_process_of_the_library(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(serving, "_WATCH_SECONDS", 0.01)
    requests = requests_for([[5, 6], [7]], SamplingParams(max_tokens=4))
    with started(DyingBackend(answers=False)) as engine:
        for _ in range(2):  # the second begins after the end
            with pytest.raises(EngineLostError, match="a process of the stub has ended"):
                asyncio.run(engine.sample(requests))


class FailingBackend(DyingBackend):
    """A library that refuses a command, and has all its processes."""

    def __init__(self, error: Exception) -> None:
        super().__init__(answers=True)
        self.error = error

    async def hold(self) -> None:
        raise self.error

    def lost(self, error: Exception) -> EngineLostError | None:
        self.asked += 1
        return None


@pytest.mark.parametrize(
    "error", [ValueError("no such mode"), InferenceError("invalid"), RuntimeError("full")]
)
def test_an_error_is_raised_at_once_where_no_report_of_a_lost_process_is_due(error: Exception):
    backend = FailingBackend(error)
    backend.report_seconds = 0.0 if isinstance(error, RuntimeError) else 3600.0
    with started(backend) as engine, pytest.raises(type(error), match=str(error)):
        engine.pause()
    assert backend.asked == 1
