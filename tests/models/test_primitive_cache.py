"""oneDNN's compiled products: limited when a model is loaded, unless the environment says otherwise."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from strop.config.schema.model import ModelConfig
from strop.models.loading import load_model
from tests.models.models import make


@pytest.mark.parametrize(("before", "after"), [(None, "64"), ("512", "512")])
def test_loading_a_model_limits_the_cache(
    before: str | None, after: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", raising=False)
    if before is not None:
        monkeypatch.setenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", before)
    make("llama").save_pretrained(tmp_path)
    load_model(ModelConfig(path=str(tmp_path)), device="cpu")
    assert os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] == after
