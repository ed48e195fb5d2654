"""GRPO with and without the online curriculum, on sums of mixed difficulty: `benchmarks/curriculum.py --out FOLDER`.

A random model is warmed up on right answers; then each seed trains with shuffled tasks and with the curriculum, on the
same data. Held-out accuracy and the fraction of groups without a signal are printed per run; finished runs are kept.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from pathlib import Path
from typing import Any

import strop
from strop.models.tiny import make_model

ORDERS: dict[str, dict[str, Any] | None] = {"shuffled": None, "curriculum": {"type": "curriculum"}}


def make_tasks(folder: Path) -> None:
    """Write sums of numbers with one, two and three digits; most of them are easy or hard for the warm model."""
    draw = random.Random(0)
    pairs = [(a, b) for a in range(10) for b in range(10)]
    pairs += [(draw.randrange(10, 100), draw.randrange(10, 100)) for _ in range(1500)]
    pairs += [(draw.randrange(100, 1000), draw.randrange(100, 1000)) for _ in range(1500)]
    pairs = list(dict.fromkeys(pairs))
    draw.shuffle(pairs)
    for name, chosen in (("test", pairs[:384]), ("train", pairs[384:])):
        rows = ({"prompt": f"{a}+{b}=", "answer": str(a + b)} for a, b in chosen)
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def values(folder: Path, name: str, **changes: Any) -> dict[str, Any]:
    """A run over the tasks of the folder."""
    return {
        "output": str(folder),
        "project": "runs",
        "name": name,
        "data": {
            "train": {"path": str(folder / "train.jsonl")},
            "eval": [{"name": "held-out", "path": str(folder / "test.jsonl")}],
            "max_prompt_tokens": 16,
            "max_response_tokens": 6,
        },
        "reward": "exact",
        "checkpoint": {"every": "1000 steps"},
        "record": {"report": False, "monitors": [], "first_and_last_rollouts": False},
    } | changes


def warm_up(folder: Path, updates: int) -> Path:
    """The folder of a random model that was trained on right answers for some updates."""
    model = folder / "warm"
    if not (model / "config.json").exists():
        make_tasks(folder)
        make_model(
            folder / "random",
            ["12+34=46"],
            vocab_size=300,
            hidden_size=128,
            layers=2,
            heads=4,
            kv_heads=4,
            seed=3,
        )
        run = values(folder, "warm-up", model={"path": str(folder / "random")}, algorithm={"type": "sft"})
        run["data"] |= {"train": run["data"]["train"] | {"response": "answer"}, "eval": []}
        del run["reward"]
        optimizer = {"type": "adamw", "lr": 2e-3}
        run["trainer"] = {"duration": f"{updates} steps", "tasks_per_step": 128, "optimizer": optimizer}
        strop.train(strop.load(run)).model.rename(model)
    return model


def train(folder: Path, model: Path, order: str, seed: int, steps: int) -> list[dict[str, float]]:
    """The rows of metrics of one run."""
    run = values(
        folder,
        f"{order}-{seed}",
        seed=seed,
        model={"path": str(model)},
        algorithm={"type": "grpo", "rollouts_per_task": 8},
        evaluate={"every": "10 steps", "at_start": True},
    )
    run["data"]["order"] = ORDERS[order]
    optimizer = {"type": "adamw", "lr": 3e-4}
    run["trainer"] = {"duration": f"{steps} steps", "tasks_per_step": 32, "optimizer": optimizer}
    done = folder / f"{order}-{seed}.json"
    if not done.exists():
        result = strop.train(strop.load(run))
        lines = (result.folder / "metrics.jsonl").read_text().splitlines()
        done.write_text(json.dumps([json.loads(line) for line in lines]))
    rows: list[dict[str, float]] = json.loads(done.read_text())
    return rows


def main() -> None:
    """Train what is missing, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--warm-updates", type=int, default=250)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    model = warm_up(options.out, options.warm_updates)
    print(
        "| order | seed | held-out before | halfway | after | groups without a signal | tasks by priority |"
    )
    for order in ORDERS:
        after = []
        for seed in options.seeds:
            rows = train(options.out, model, order, seed, options.steps)
            held_out = {
                row["step"]: row["eval/held-out/reward"] for row in rows if "eval/held-out/reward" in row
            }
            halfway = held_out[min(held_out, key=lambda step: abs(step - options.steps / 2))]
            steps = [row for row in rows if row["step"] > 0]
            dull = statistics.mean(row["groups/zero_variance_fraction"] for row in steps)
            drawn = statistics.mean(1 - row.get("curriculum/explored_fraction", 1.0) for row in steps)
            after.append(held_out[options.steps])
            shown = f"{held_out[0]:.3f} | {halfway:.3f} | {after[-1]:.3f} | {dull:.2f} | {drawn:.2f}"
            print(f"| {order} | {seed} | {shown} |", flush=True)
        print(f"| {order} | mean | | | {statistics.mean(after):.3f} | | |", flush=True)


if __name__ == "__main__":
    main()
