"""State that a pool restores in an engine that is started again: requests, adapters, unanswered commands."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from strop.errors import EngineLostError
from strop.inference.native.engine import NATIVE_CAPABILITIES
from strop.inference.pool import EnginePool, EngineSpec
from strop.inference.registry import running_engine
from strop.types import Completion, EngineStatistics, SampleRequest, SamplingParams
from strop.workers.start import LocalPlacement
from tests.inference.helpers import random_prompts, requests_for, sample


@dataclass
class StubEngine:
    """Answers with the adapter's text; the first `losses` engines lose their processes at a request."""

    folder: Path
    losses: int
    capabilities = replace(NATIVE_CAPABILITIES, adapters=True)
    adapter = ""
    version = 0
    processed_tokens = 0

    def start(self) -> None:
        (self.folder / f"start-{len(list(self.folder.iterdir()))}").touch()

    def close(self) -> None:
        pass

    def describe(self) -> str:
        return "a stub"

    async def sample(self, requests: list[SampleRequest]) -> list[Completion]:
        if len(list(self.folder.glob("start-*"))) <= self.losses:
            raise EngineLostError("a process of the stub has ended")
        tokens = np.frombuffer(self.adapter.encode(), dtype=np.uint8).astype(np.int32)
        logprobs = np.zeros(len(tokens), dtype=np.float32)
        return [Completion(tokens, logprobs, None, "stop", self.version) for _ in requests]

    def load_adapter(self, folder: Path, version: int) -> None:
        self.adapter, self.version = (folder / "adapter").read_text(), version

    def take_statistics(self) -> EngineStatistics:
        return EngineStatistics(3, 1, 0.5, 10, 4, 2)


@dataclass(frozen=True)
class StubFactory:
    folder: Path
    losses: int = 0

    def __call__(self) -> Any:
        return StubEngine(self.folder, self.losses)


def pool_of(engines: int, factory: StubFactory) -> EnginePool:
    specs = [EngineSpec(f"engine-{number}", factory) for number in range(engines)]
    return EnginePool(specs, LocalPlacement(), max_restarts=1)


def test_an_engine_that_loses_its_processes_is_replaced_with_its_adapter_and_requests(tmp_path: Path):
    starts, adapter = tmp_path / "starts", tmp_path / "adapter"
    starts.mkdir()
    adapter.mkdir()
    (adapter / "adapter").write_text("v7")
    with running_engine(pool_of(1, StubFactory(starts, losses=1))) as pool:
        pool.load_adapter(adapter, 7)
        completions = sample(pool, requests_for(random_prompts(3, 4), SamplingParams(), samples=2))
    assert len(list(starts.iterdir())) == 2
    assert [bytes(each.token_ids.astype(np.uint8)) for each in completions] == [b"v7"] * 4
    assert {each.version for each in completions} == {7}


def test_statistics_are_those_of_all_engines(tmp_path: Path):
    with running_engine(pool_of(2, StubFactory(tmp_path))) as pool:
        assert pool.take_statistics() == EngineStatistics(3, 1, 0.5, 20, 8, 4)
