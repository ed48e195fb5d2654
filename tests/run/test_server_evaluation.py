"""Runs with a server as their engine: evaluation of its model, and no training."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

pytest.importorskip("aiohttp")

import strop
from strop.config.preflight import missing_files
from strop.config.schema.rollout import AuxiliaryModelConfig, NativeEngineConfig
from strop.errors import CheckpointError, ConfigError
from strop.inference.auxiliary_model import load_auxiliary_model
from strop.run.entry.evaluate import evaluate
from strop.run.entry.generate import generate
from tests.inference.endpoints import Client, open_endpoint

KEY = "STROP_TEST_SERVER_KEY"


@pytest.fixture(scope="module")
def server(tiny: Path) -> Iterator[Client]:
    section = AuxiliaryModelConfig(
        name="served", path=str(tiny / "model"), engine=NativeEngineConfig(kv_cache_tokens=4096)
    )
    with (
        closing(load_auxiliary_model(section, torch.device("cpu"), seed=1)) as model,
        open_endpoint({"served": model}) as client,
    ):
        yield client


@pytest.fixture
def engine(server: Client, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setenv(KEY, server.key)
    url = f"http://127.0.0.1:{server.port}/v1"
    return {"type": "openai", "base_url": url, "model": "served", "api_key_env": KEY}


def test_bench_measures_what_the_native_engine_measures(values, engine):
    expected = evaluate(strop.load(values()), None, None)
    served = strop.train(strop.load(values(mode="bench", rollout__engine=engine)))
    (row,) = (json.loads(line) for line in (served.folder / "bench.jsonl").read_text().splitlines())
    assert (row["checkpoint"], row["step"]) == ("model", 0)
    assert expected["eval/held-out/response_tokens"] > 1
    for key in expected.keys() - {"time/evaluate_seconds"}:
        assert row[key] == expected[key], key


@pytest.mark.slow
@pytest.mark.parametrize("api", ["completions", "chat"])
def test_evaluate_and_generate(values, engine, tmp_path, api):
    loaded = strop.load(values(rollout__engine=engine | {"api": api}))
    metrics = evaluate(loaded, None, None)
    assert metrics["eval/held-out/error_fraction"] == 0
    out = tmp_path / "responses.parquet"
    assert generate(loaded, Path(loaded.run.data.train.path), out, None) == 100
    assert {len(row) for row in pq.read_table(out)["responses"].to_pylist()} == {4}
    with pytest.raises(CheckpointError, match="cannot be evaluated on a server"):
        evaluate(loaded, tmp_path, None)
    with pytest.raises(ConfigError, match="cannot be sampled on a server"):
        generate(loaded, Path(loaded.run.data.train.path), out, tmp_path)


def test_training_is_refused(values, engine, monkeypatch):
    loaded = strop.load(values(rollout__engine=engine))
    with pytest.raises(ConfigError, match="nothing that this run trains would reach it"):
        strop.train(loaded)
    assert any("nothing that this run trains" in fault for fault in missing_files(loaded))
    monkeypatch.delenv(KEY)
    assert any(f"the environment variable {KEY} is not set" in fault for fault in missing_files(loaded))


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"rollout__pool": {"engines": 2}}, "remove rollout.pool"),
        ({"mode": "bench", "bench__checkpoints": ["runs/a"]}, "evaluated with the weights that it has"),
        ({"mode": "bench", "bench__initial_model": False}, "write true"),
        (
            {"synchronizer": {"type": "checkpoint"}, "rollout__engine__weight_updates": "vllm"},
            "write `synchronizer: memory`",
        ),
        ({"rollout__engine__weight_updates": "vllm", "rollout__engine__api": "chat"}, "remove api"),
    ],
)
def test_options_without_a_meaning_are_refused(values, engine, changes, fault):
    with pytest.raises(ConfigError, match=fault):
        strop.load(values(rollout__engine=dict(engine), **changes))
