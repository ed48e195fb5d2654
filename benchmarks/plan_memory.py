"""Peak memory that `strop plan` predicts for a run on the CPU, beside the measured peak, for twelve configurations.

    python benchmarks/plan_memory.py [--only NUMBER ...] [--threads 1]

Each configuration trains a random model for two GRPO steps in a process of its own, whose peak resident memory is in
its metrics (`memory/peak_mb`).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strop.config.load.loader import load_values
from strop.config.plan.cpu_memory import predict_peak
from strop.config.plan.model_size import read_model_size
from strop.models.tiny import make_model

STEPS = 2
TASKS = 4


@dataclass(frozen=True, slots=True)
class Configuration:
    """Size of a model and of its batches."""

    hidden: int
    layers: int
    vocabulary: int
    microbatch: str
    response_tokens: int = 128
    rollouts: int = 8
    dtype: str = "float32"
    compute_dtype: str | None = None
    lora: int | None = None
    checkpointing: bool = False

    def __str__(self) -> str:
        kind = self.dtype if self.compute_dtype is None else f"{self.compute_dtype} over {self.dtype}"
        lora = f", LoRA {self.lora}" if self.lora else ""
        return f"{self.layers} x {self.hidden}, vocabulary {self.vocabulary:,}, {kind}{lora}"


CONFIGURATIONS = (
    Configuration(512, 8, 8192, "4096 tokens"),
    Configuration(512, 8, 8192, "1024 tokens"),
    Configuration(512, 8, 8192, "4096 tokens", checkpointing=True),
    Configuration(512, 8, 8192, "4096 tokens", lora=16),
    Configuration(512, 8, 8192, "4096 tokens", compute_dtype="bfloat16"),
    Configuration(512, 8, 8192, "4096 tokens", dtype="bfloat16"),
    Configuration(1024, 8, 8192, "2048 tokens"),
    Configuration(1024, 8, 32768, "2048 tokens", lora=16),
    Configuration(1024, 8, 8192, "2048 tokens", compute_dtype="bfloat16", checkpointing=True),
    Configuration(768, 12, 32768, "1024 tokens", response_tokens=64),
    Configuration(256, 4, 8192, "8192 tokens", response_tokens=256),
    Configuration(768, 12, 8192, "4096 tokens", lora=16, dtype="bfloat16", checkpointing=True),
)


def words(count: int) -> list[str]:
    """Random words, from which the tokenizer learns as many tokens."""
    letters = random.Random(0)
    return ["".join(letters.choices("abcdefghijklmnopqrstuvwxyz", k=8)) for _ in range(2 * count)]


def run_values(folder: Path, one: Configuration) -> dict[str, Any]:
    """Values of the run file of a configuration."""
    model: dict[str, Any] = {
        "path": str(folder / "model"),
        "dtype": one.dtype,
        "gradient_checkpointing": one.checkpointing,
    }
    if one.compute_dtype:
        model["compute_dtype"] = one.compute_dtype
    if one.lora:
        model["lora"] = {"rank": one.lora, "alpha": 32}
    return {
        "name": "memory",
        "output": str(folder / "runs"),
        "model": model,
        "data": {
            "train": {"path": str(folder / "tasks.jsonl")},
            "max_prompt_tokens": 64,
            "max_response_tokens": one.response_tokens,
        },
        "reward": "exact",
        "rollout": {"sampling": {"ignore_eos": True}},
        "algorithm": {"type": "grpo", "rollouts_per_task": one.rollouts},
        "trainer": {"duration": f"{STEPS} steps", "tasks_per_step": TASKS, "microbatch": one.microbatch},
        "record": {"monitors": [], "report": False},
    }


def measure(folder: Path, one: Configuration, threads: int) -> float:
    """Train, and return the peak resident memory in MB."""
    (folder / "run.yaml").write_text(json.dumps(run_values(folder, one)))
    env = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, "-m", "strop", "train", str(folder / "run.yaml")]
    subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL)
    rows = (folder / "runs" / "strop" / "memory" / "metrics.jsonl").read_text().splitlines()
    return max(json.loads(row)["memory/peak_mb"] for row in rows)


def main() -> None:
    """Run the command line: print a table with a row for each configuration."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", type=int, nargs="+", help="numbers of configurations, from 1")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    print("| model | micro-batch | checkpointing | predicted MB | measured MB | error |")
    print("| --- | --- | --- | --- | --- | --- |")
    for number, one in enumerate(CONFIGURATIONS, 1):
        if args.only and number not in args.only:
            continue
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            make_model(
                folder / "model",
                words(one.vocabulary),
                vocab_size=one.vocabulary,
                hidden_size=one.hidden,
                layers=one.layers,
                heads=one.hidden // 64,
                kv_heads=one.hidden // 128,
            )
            rows = [
                json.dumps({"prompt": f"add {n} and {n + 1}", "answer": str(2 * n + 1)}) for n in range(64)
            ]
            (folder / "tasks.jsonl").write_text("\n".join(rows) + "\n")
            size = read_model_size(str(folder / "model"))
            assert size is not None
            predicted = predict_peak(load_values(run_values(folder, one)).run, size).total / 1e6
            measured = measure(folder, one, args.threads)
        error = predicted / measured - 1
        print(
            f"| {one} | {one.microbatch} | {'yes' if one.checkpointing else 'no'} | {predicted:,.0f} | "
            f"{measured:,.0f} | {error:+.0%} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
