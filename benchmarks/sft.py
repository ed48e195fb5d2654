"""Tokens per CPU-second and peak memory of supervised fine-tuning by Strop and by TRL's SFTTrainer.

    make .venv/bench && .venv/bin/python benchmarks/sft.py

Both train the random 10.2M-parameter Qwen2 of `grpo_step.py` on the same prompts and responses of very different
lengths, with the loss on the responses only, about 32 rows per update and one thread. TRL runs with padding,
without padding, and packed, in both types. Each implementation runs in a separate process. The measurement is over
`--steps` updates after one warm-up update; it counts tokens without padding, and includes the CPU time of child
processes.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_step import StepClock, cpu_seconds, peak_mb

ROWS_PER_UPDATE, MAX_TOKENS = 32, 512
PEERS = {
    "Strop float32": ("strop", "float32", ""),
    "Strop bfloat16": ("strop", "bfloat16", ""),
    "TRL bfloat16, padded": ("trl", "bfloat16", "padded"),
    "TRL bfloat16, padding-free": ("trl", "bfloat16", "padding-free"),
    "TRL bfloat16, packed": ("trl", "bfloat16", "packed"),
    "TRL float32, padded": ("trl", "float32", "padded"),
    "TRL float32, padding-free": ("trl", "float32", "padding-free"),
    "TRL float32, packed": ("trl", "float32", "packed"),
}


@dataclass(frozen=True)
class Measured:
    """Measurement of one implementation."""

    tokens: float
    """Number of tokens trained on, prompts included, without padding."""
    cpu_seconds: float
    """CPU time in seconds."""
    peak_mb: float
    """Peak resident memory in MB."""
    first_loss: float
    """Loss of the first update."""


def texts(count: int) -> list[dict[str, str]]:
    """Generate prompts of 5 to 40 words and responses of 5 to 250 words, most of which are short."""
    draw = random.Random(0)
    syllables = [a + b for a in "bdfgklmnprst" for b in "aeiou"]

    def words(number: int) -> str:
        return " ".join("".join(draw.choices(syllables, k=2)) for _ in range(number))

    return [
        {"prompt": words(draw.randint(5, 40)), "completion": words(int(5 * 50 ** draw.random()))}
        for _ in range(count)
    ]


def run_strop(folder: Path, dtype: str, _mode: str, steps: int) -> Measured:
    """Measure Strop, with a callback that records the CPU time after each step."""
    data = {"response": "completion"}
    rows, seconds = train_with_strop(folder, dtype, "sft", data, ROWS_PER_UPDATE, steps)
    return Measured(sum(row["trained_tokens"] for row in rows[1:]), seconds, peak_mb(), rows[0]["loss"])


def train_with_strop(
    folder: Path, dtype: str, algorithm: str, data: Mapping[str, str], rows_per_update: int, steps: int
) -> tuple[list[dict[str, float]], float]:
    """Train on rows.jsonl; returns the metrics of each update, and the CPU time of those after the first."""
    import strop

    clock = StepClock()
    run = strop.load(
        {
            "name": f"{algorithm}-{dtype}",
            "output": str(folder / "runs"),
            "model": {"path": str(folder / "model"), "compute_dtype": dtype},
            "data": {
                "train": {"path": str(folder / "rows.jsonl"), **data},
                "max_prompt_tokens": MAX_TOKENS,
                "max_response_tokens": MAX_TOKENS,
            },
            "algorithm": algorithm,
            "trainer": {
                "duration": f"{steps + 1} steps",
                "tasks_per_step": rows_per_update,
                "microbatch": "4096 tokens",
                "optimizer": {"type": "adamw", "lr": 1e-4},
            },
            "record": {"monitors": [], "report": False},
        }
    )
    result = strop.train(run, callbacks=[clock])
    rows = [json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()][1:]
    return rows, clock.step_ends[-1] - clock.step_ends[0]


def run_trl(folder: Path, dtype: str, mode: str, steps: int) -> Measured:
    """Measure TRL's SFTTrainer, with a callback that records CPU time and tokens after each update."""
    from datasets import load_dataset
    from transformers import AutoModelForCausalLM, TrainerCallback
    from trl import SFTConfig, SFTTrainer

    step_ends: list[tuple[float, float]] = []

    class TrlClock(TrainerCallback):
        def on_step_end(self, *_: object, **__: object) -> None:
            step_ends.append((cpu_seconds(), float(trainer._total_train_tokens)))

    # a packed sequence has about 8 of these rows
    options = trl_options(folder, dtype, mode, 4 if mode == "packed" else ROWS_PER_UPDATE, steps)
    config = SFTConfig(packing=mode == "packed", padding_free=mode == "padding-free", **options)
    trainer = SFTTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder / "model", dtype="float32"),
        args=config,
        train_dataset=load_dataset("json", data_files=str(folder / "rows.jsonl"), split="train").map(
            lambda row: {
                "prompt": [{"role": "user", "content": row["prompt"]}],
                "completion": [{"role": "assistant", "content": row["completion"]}],
            }
        ),
        callbacks=[TrlClock()],
    )
    trainer.train()
    loss = next(row["loss"] for row in trainer.state.log_history if "loss" in row)
    (cpu_before, tokens_before), (cpu_after, tokens_after) = step_ends[0], step_ends[-1]
    return Measured(tokens_after - tokens_before, cpu_after - cpu_before, peak_mb(), float(loss))


def trl_options(folder: Path, dtype: str, mode: str, batch_size: int, steps: int) -> dict[str, Any]:
    """Arguments of every configuration of TRL's."""
    return {
        "output_dir": str(folder / "trl"),
        "per_device_train_batch_size": batch_size,
        "max_length": None if mode == "padding-free" else 2 * MAX_TOKENS,
        "max_steps": steps + 1,
        "learning_rate": 1e-4,
        "bf16": dtype == "bfloat16",
        "use_cpu": True,
        "gradient_checkpointing": False,
        "report_to": [],
        "save_strategy": "no",
        "logging_strategy": "steps",
        "logging_steps": 1,
        "disable_tqdm": True,
    }


def prepare(folder: Path, steps: int) -> None:
    """Write the model and the rows that all implementations share."""
    from strop.models.tiny import make_model

    rows = texts(ROWS_PER_UPDATE * (steps + 2) * 2)
    corpus = [text for row in rows for text in row.values()]
    make_model(folder / "model", corpus, vocab_size=2048, hidden_size=384, layers=6, heads=6, kv_heads=2)
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def measure(script: str, peers: Iterable[str], folder: str, steps: int) -> dict[str, Measured]:
    """Run each implementation in a process of its own."""
    measured: dict[str, Measured] = {}
    for peer in peers:
        command = [sys.executable, script, "--peer", peer, "--folder", folder, "--steps", str(steps)]
        done = subprocess.run(
            command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
        )
        if done.returncode:
            sys.exit(f"{peer} failed:\n{done.stdout}\n{done.stderr}")
        measured[peer] = Measured(**json.loads(done.stdout.splitlines()[-1]))
    return measured


def print_table(measured: Mapping[str, Measured]) -> None:
    """Print a row for each implementation, compared with TRL's best of the same algorithm."""
    speed = {peer: m.tokens / m.cpu_seconds for peer, m in measured.items()}
    print("| implementation | tokens per CPU-second | relative to TRL's best | peak MB | first loss |")
    print("| --- | --- | --- | --- | --- |")
    for peer, m in measured.items():
        of_trl = f"{re.split('Strop|TRL', peer)[0]}TRL"
        best = max(value for other, value in speed.items() if other.startswith(of_trl))
        figures = f"{speed[peer]:,.0f} | {speed[peer] / best:.2f} | {m.peak_mb:.0f} | {m.first_loss:.3f}"
        print(f"| {peer} | {figures} |")


def arguments(summary: str, peers: Collection[str], steps: int) -> argparse.ArgumentParser:
    """The command line; `--peer` and `--folder` are for the processes that the script starts."""
    parser = argparse.ArgumentParser(description=summary)
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--peer", choices=peers, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    return parser


def main() -> None:
    """Run the command line."""
    args = arguments(
        "Tokens per CPU-second of supervised fine-tuning by Strop and by TRL.", PEERS, 8
    ).parse_args()
    if args.peer is None:
        with tempfile.TemporaryDirectory() as name:
            prepare(Path(name), args.steps)
            print_table(measure(__file__, PEERS, name, args.steps))
        return
    kind, dtype, mode = PEERS[args.peer]
    run = run_strop if kind == "strop" else run_trl
    print(json.dumps(run(args.folder, dtype, mode, args.steps).__dict__))


if __name__ == "__main__":
    main()
