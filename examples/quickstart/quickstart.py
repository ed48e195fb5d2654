"""`strop quickstart`, the main job, small: a model made on the spot learns two-digit sums.

A short supervised stage brings it to where it is right now and then; GRPO does the rest. Nothing
is downloaded, and no GPU is needed.
"""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

from warm_up import warm_up

import strop
from strop.models.tiny import make_model

HERE = Path(__file__).parent
HELD_OUT_TASKS = 256
MODEL_SEED = 3
"""Seed of the random model, independent of `--seed`: some models learn sums more slowly (docs/lab-log.md)."""


def make_tasks(folder: Path) -> None:
    """Write every sum of two two-digit numbers, once, to train.jsonl or test.jsonl."""
    pairs = [(a, b) for a in range(10, 100) for b in range(10, 100)]
    random.Random(0).shuffle(pairs)
    for name, chosen in (("test", pairs[:HELD_OUT_TASKS]), ("train", pairs[HELD_OUT_TASKS:])):
        rows = ({"prompt": f"{a}+{b}=", "answer": str(a + b)} for a, b in chosen)
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def prepare(out: Path, seed: int) -> None:
    """The tasks, a random model, and the warm start that GRPO begins with, all in `out`."""
    make_tasks(out)
    make_model(
        out / "random",
        ["12+34=46"],
        vocab_size=300,
        hidden_size=128,
        layers=2,
        heads=4,
        kv_heads=4,
        seed=MODEL_SEED,
    )
    overrides = [f"seed={seed}", f"output={out.parent}", f"project={out.name}"]
    warm_up(
        strop.load(HERE / "run.yaml", [*overrides, f"model.path={out / 'random'}"]),
        out / "warm-start",
    )


def run(out: Path, *, seed: int, steps: int) -> None:
    """Prepare `out`, unless an earlier call did, train there, and print where everything is."""
    out.mkdir(parents=True, exist_ok=True)
    os.environ["QUICKSTART"] = str(out)

    prepared = out / "prepared-with-seed"
    if not prepared.is_file() or prepared.read_text() != str(seed):
        prepare(out, seed)
        prepared.write_text(str(seed))
    overrides = [
        f"seed={seed}",
        f"output={out.parent}",
        f"project={out.name}",
        f"trainer.duration={steps} steps",
    ]
    result = strop.train(strop.load(HERE / "run.yaml", overrides))

    print(f"Everything is in {result.folder}:")
    for what, where in (
        ("the model", result.model),
        ("the metrics", result.folder / "metrics.jsonl"),
        ("the samples", result.folder / "rollouts"),
        ("the report", result.folder / "report.html"),
    ):
        print(f"  {what:12} {where}")
