"""Model folders of which only the headers are there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def write_header(folder: Path, shape: list[int], dtype: str = "F32", **config: Any) -> Path:
    """Write `config.json`, and the header of a file of weights with one tensor of one byte; returns the folder."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    header = json.dumps({"w": {"dtype": dtype, "shape": shape, "data_offsets": [0, 1]}}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"\0")
    return folder
