"""The model of these tests, and a policy that no test trains."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import strop
from strop.models.tiny import make_model


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of two layers with a tokenizer of 300 tokens."""
    return make_model(
        tmp_path_factory.mktemp("model") / "model", ["12+34=46"], vocab_size=300, hidden_size=32
    )


@pytest.fixture(scope="session")
def still(folder: Path) -> Iterator[strop.Policy]:
    """A policy whose weights no test changes."""
    with strop.Policy(folder, reference=True) as policy:
        yield policy
