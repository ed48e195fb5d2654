"""Makes a task of naming the color of a square in an image, and a small random model for it.

python examples/images/colors/make.py runs/images
IMAGES=runs/images strop train examples/images/colors/run.yaml      (or sft.yaml, dpo.yaml)
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from strop.models.vision.tiny import make_vision_model

COLORS = {
    "red": (220, 40, 40),
    "green": (40, 180, 60),
    "blue": (50, 70, 220),
    "yellow": (230, 220, 50),
    "purple": (150, 50, 190),
    "cyan": (60, 210, 220),
    "white": (240, 240, 240),
    "black": (15, 15, 15),
}
SIDE = 32
"""Width and height of an image in pixels: 4 x 4 patches, which are four tokens."""
PROMPT = "<image>Color?"
SIZES = {"train": 2000, "test": 200, "demonstrations": 500, "pairs": 2000, "test-pairs": 200}


def draw(color: str, rng: np.random.Generator) -> bytes:
    """A PNG of a square of this color, of random size and place, on noisy gray."""
    pixels = np.full((SIDE, SIDE, 3), 128.0)
    side = rng.integers(14, 21)
    top, left = rng.integers(0, SIDE - side + 1, 2)
    pixels[top : top + side, left : left + side] = COLORS[color]
    pixels += rng.normal(0, 20, pixels.shape)
    file = io.BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(file, format="PNG")
    return file.getvalue()


def make_tasks(folder: Path) -> None:
    """Write the tasks to train on, held-out tasks, demonstrations for the warm-up, and pairs with a wrong color."""
    rng = np.random.default_rng(0)
    for name, count in SIZES.items():
        colors = rng.choice(list(COLORS), count).tolist()
        rows = [{"prompt": PROMPT, "images": [draw(color, rng)], "answer": color} for color in colors]
        if name.endswith("pairs"):
            for row in rows:
                row["wrong"] = str(rng.choice([color for color in COLORS if color != row["answer"]]))
        pq.write_table(pa.Table.from_pylist(rows), folder / f"{name}.parquet")


def make(folder: Path) -> None:
    """Write the tasks and the model."""
    folder.mkdir(parents=True, exist_ok=True)
    make_tasks(folder)
    make_vision_model(
        folder / "model",
        ["Color?", *COLORS] * 4,
        vocab_size=300,
        vision_layers=1,
        min_pixels=SIDE * SIDE,
        max_pixels=SIDE * SIDE,
    )


if __name__ == "__main__":
    make(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/images"))
