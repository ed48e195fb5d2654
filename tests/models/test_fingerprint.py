"""Fingerprints of model folders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from strop.models.fingerprint import model_fingerprint


@pytest.fixture
def make(tmp_path: Path):
    """A folder with a configuration and two megabytes of weights."""

    def folder(name: str, *, config: str | None = None, weights: bytes = b"w" * 2_000_000) -> str:
        place = tmp_path / name
        place.mkdir()
        written = json.dumps({"hidden_size": 8, "transformers_version": name}) if config is None else config
        (place / "config.json").write_text(written)
        (place / "model.safetensors").write_bytes(weights)
        return model_fingerprint(str(place))

    return folder


def test_copies_have_equal_fingerprints(make) -> None:
    assert make("here") == make("there")
    assert make("here2").startswith("contents ")


def test_other_configurations_and_weights_have_other_fingerprints(make) -> None:
    other_weights = b"w" * 1_000_000 + b"v" * 1_000_000
    found = {
        make("one"),
        make("wider", config='{"hidden_size": 16}'),
        make("broken", config="{"),
        make("trained", weights=other_weights),
        make("longer", weights=b"w" * 2_000_001),
    }
    assert len(found) == 5


def test_the_fingerprint_of_a_hub_name_is_the_name() -> None:
    assert model_fingerprint("Qwen/Qwen2.5-0.5B-Instruct") == "Qwen/Qwen2.5-0.5B-Instruct"
