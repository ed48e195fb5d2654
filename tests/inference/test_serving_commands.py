"""Commands to a serving library that loses a process meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from strop.errors import EngineLostError
from strop.inference.serving import engine as serving
from strop.inference.serving.backend import SERVING_CAPABILITIES
from strop.inference.serving.engine import ServingEngine


class DyingBackend:
    """A library one of whose processes has ended, which it reports when it is asked for the fourth time."""

    name = "stub"
    capabilities = SERVING_CAPABILITIES

    def __init__(self, *, answers: bool) -> None:
        self.answers = answers
        self.asked = 0

    async def start(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def hold(self) -> None:
        if self.answers:
            raise RuntimeError("Call to pause_scheduler method failed: cancelled")
        await asyncio.Event().wait()

    def lost(self, error: Exception) -> EngineLostError | None:
        self.asked += 1
        return EngineLostError("a process of the stub has ended") if self.asked > 3 else None


@pytest.mark.parametrize("answers", [True, False])
def test_a_command_ends_with_the_process_that_it_was_sent_to(answers: bool, monkeypatch: pytest.MonkeyPatch):
    """vLLM answers a command of that moment with an error of its own, or never."""
    monkeypatch.setattr(serving, "_WATCH_SECONDS", 0.01)
    backend: Any = DyingBackend(answers=answers)
    engine = ServingEngine(backend)
    engine.start()
    with pytest.raises(EngineLostError, match="a process of the stub has ended"):
        engine.pause()
    assert backend.asked >= 4
    engine.close()
