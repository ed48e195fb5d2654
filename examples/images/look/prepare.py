"""Makes a task whose image only a tool shows, demonstrations of calls, and a small random model.

python examples/images/look/prepare.py runs/look
LOOK=runs/look strop train examples/images/look/run.yaml
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from strop.models.vision.tiny import make_vision_model

sys.path.append(str(Path(__file__).parent.parent / "colors"))
from make import COLORS, SIDE, draw  # type: ignore[import-not-found]

CALL = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
SIZES = {"train": 400, "test": 100, "demonstrations": 300}


def make_row(name: str, color: str, picture: Path) -> dict[str, Any]:
    """A task with its picture for the tool, or the conversation of a demonstration."""
    if name != "demonstrations":
        return {
            "prompt": "Color?",
            "answer": color,
            "extra_info": {"tools_kwargs": {"look": {"create_kwargs": {"picture": str(picture)}}}},
        }
    turns = (("user", "Color?"), ("assistant", CALL), ("tool", "<image>seen"), ("assistant", color))
    messages = [{"role": role, "content": content} for role, content in turns]
    return {"images": [str(picture)], "messages": messages}


def make(folder: Path) -> None:
    """Write pictures, tasks and the model."""
    rng = np.random.default_rng(0)
    for name, count in SIZES.items():
        pictures = folder / "pictures" / name
        pictures.mkdir(parents=True, exist_ok=True)
        rows = []
        for number, color in enumerate(rng.choice(list(COLORS), count).tolist()):
            picture = (pictures / f"{number}.png").resolve()
            picture.write_bytes(draw(color, rng))
            rows.append(make_row(name, color, picture))
        pq.write_table(pa.Table.from_pylist(rows), folder / f"{name}.parquet")
    make_vision_model(
        folder / "model",
        ["Color?", CALL, "seen", *COLORS] * 4,
        vocab_size=340,
        vision_layers=1,
        min_pixels=SIDE * SIDE,
        max_pixels=SIDE * SIDE,
    )


if __name__ == "__main__":
    make(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/look"))
