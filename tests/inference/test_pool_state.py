"""State that a pool restores in an engine that is started again: requests, adapters, unanswered commands."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from strop.errors import EngineLostError, WeightTransferError
from strop.inference.native.engine import NATIVE_CAPABILITIES
from strop.inference.pool import EnginePool, EngineSpec
from strop.inference.pool.messages import EngineCreated
from strop.inference.pool.pool_request import PoolRequest
from strop.inference.registry import running_engine
from strop.protocols import TrainerAddress
from strop.types import Completion, EngineStatistics, SampleRequest, SamplingParams
from strop.workers.address import Address
from strop.workers.start import LocalPlacement
from tests.inference.helpers import random_prompts, requests_for, sample


@dataclass
class StubEngine:
    """Answers with the adapter's text; the first `losses` engines lose their processes at a request."""

    folder: Path
    losses: int
    capabilities = replace(
        NATIVE_CAPABILITIES,
        adapters=True,
        weight_transports=frozenset(("tensors", "path", "process_group")),
    )
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
        while self.version < 0:
            await asyncio.sleep(0.01)
        if len(list(self.folder.glob("start-*"))) <= self.losses:
            raise EngineLostError("a process of the stub has ended")
        tokens = np.frombuffer(self.adapter.encode(), dtype=np.uint8).astype(np.int32)
        logprobs = np.zeros(len(tokens), dtype=np.float32)
        return [Completion(tokens, logprobs, None, "stop", self.version) for _ in requests]

    def load_adapter(self, folder: Path, version: int) -> None:
        self.adapter, self.version = (folder / "adapter").read_text(), version

    def load_process_group(self, trainer: TrainerAddress, version: int) -> None:
        """Receive weights from a trainer, which is a file: its host is the file's name."""
        self.version = -1  # nothing is sampled with it
        address = trainer()
        if address is None or not Path(address.host).exists():
            raise WeightTransferError("the trainer is gone")
        self.version, self.adapter = version, Path(address.host).read_text()

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


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_restarted_engine_receives_its_version_again_from_a_restarted_trainer(tmp_path: Path):
    """The trainer of the first load is gone when the engine is started again, and comes back at another address."""
    starts, files = tmp_path / "starts", [tmp_path / "first", tmp_path / "second"]
    starts.mkdir()
    files[0].write_text("v7")
    asked: list[int] = []

    def trainer() -> Address | None:
        asked.append(len(asked))
        if len(asked) == 4:  # asked again and again by the restarted engine
            files[1].write_text("v7 again")
        return Address(str(files[0 if len(asked) == 1 else 1]), 1, "token")

    with running_engine(pool_of(1, StubFactory(starts, losses=1))) as pool:
        pool.load_process_group(trainer, 7)
        (completion,) = sample(pool, requests_for(random_prompts(3), SamplingParams()))
        with pytest.raises(WeightTransferError, match="engine-0: the trainer is gone"):
            pool.load_process_group(lambda: None, 8)
        pool.load_process_group(trainer, 9)
        (later,) = sample(pool, requests_for(random_prompts(3), SamplingParams()))
    assert len(list(starts.iterdir())) == 2 and len(asked) == 5
    assert (completion.version, bytes(completion.token_ids.astype(np.uint8))) == (7, b"v7 again")
    assert later.version == 9


@pytest.mark.slow
def test_statistics_are_those_of_all_engines(tmp_path: Path):
    with running_engine(pool_of(2, StubFactory(tmp_path))) as pool:
        assert pool.take_statistics() == EngineStatistics(3, 1, 0.5, 20, 8, 4)


@pytest.mark.parametrize("keeps_prefixes", [True, False])
def test_the_next_turn_of_a_rollout_goes_to_the_engine_that_has_its_prefix(
    tmp_path: Path, keeps_prefixes: bool
):
    """Without processes: three rollouts of one turn each, then their second turns in another order."""
    pool = pool_of(2, StubFactory(tmp_path))
    pool._engines = [Mock(name=f"engine-{number}") for number in range(2)]
    pool._created = EngineCreated("stubs", replace(StubEngine.capabilities, keeps_prefixes=keeps_prefixes))
    first = requests_for(random_prompts(3, 4, 5), SamplingParams())
    longer = [
        replace(each, prompt_ids=np.concatenate([each.prompt_ids, [7, 8]]), seed=9)
        for each in reversed(first)
    ]
    chosen = {}
    for number, request in enumerate([*first, *longer]):
        pending = PoolRequest(number, request, Mock(**{"done.return_value": True}))
        chosen.setdefault(request.id, []).append(pool._engines.index(pool._choose(pending)))
        if request.id == "2.0":
            pool._remove([pending])
    turns = {"0.0": [0, 0], "1.0": [1, 1], "2.0": [0, 0]} if keeps_prefixes else None
    assert chosen == (turns or {"0.0": [0, 1], "1.0": [1, 0], "2.0": [0, 0]})
    assert len(pool._engine_of_rollout) == (3 if keeps_prefixes else 0)
