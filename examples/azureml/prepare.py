"""Write example inputs of the GRPO component: questions in JSONL, a DeepSpeed file, and a small untrained model.

python examples/azureml/prepare.py FOLDER
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

from strop.models.tiny import make_model


def question(draw: random.Random) -> dict[str, str]:
    """A sum with four choices, in the component's columns `problem` and `solution`."""
    a, b = draw.randint(1, 9), draw.randint(1, 9)
    sums = draw.sample(range(2, 19), 4)
    right = draw.randrange(4)
    if a + b not in sums:
        sums[right] = a + b
    choices = "\n".join(f"{letter}. {number}" for letter, number in zip("ABCD", sums, strict=True))
    return {"problem": f"How much is {a} + {b}?\n{choices}", "solution": "ABCD"[sums.index(a + b)]}


def main(folder: Path) -> None:
    """Write all inputs into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(1)
    questions = [question(draw) for _ in range(80)]
    for name, part in (("train", questions[:64]), ("validation", questions[64:])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    (folder / "deepspeed.json").write_text(json.dumps({"zero_optimization": {"stage": 2}}))
    make_model(folder / "model", [row["problem"] for row in questions], vocab_size=400)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
