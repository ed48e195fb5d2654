"""Sizes of model folders, which may change while a process such as Studio runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from strop.config.plan.model_size import read_model_size


def _write(folder: Path, layers: int) -> None:
    folder.mkdir(exist_ok=True)
    config = {"num_hidden_layers": layers, "hidden_size": 16, "num_attention_heads": 2}
    (folder / "config.json").write_text(json.dumps(config))
    header = json.dumps({"w": {"dtype": "F32", "shape": [300, 16], "data_offsets": [0, 19200]}}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)


def test_a_relative_path_is_that_of_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for number in (1, 2):
        (tmp_path / str(number)).mkdir()
        monkeypatch.chdir(tmp_path / str(number))
        assert read_model_size("./m") is None
        _write(Path("m"), layers=number)
        size = read_model_size("./m")
        assert size is not None
        found.append((size.layers, size.parameters))
    assert found == [(1, 4800), (2, 4800)]
