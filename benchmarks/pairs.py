"""Tokens per CPU-second and peak memory of DPO and of a reward model on pairs, by Strop and by TRL.

    make .venv/bench && .venv/bin/python benchmarks/pairs.py

Both train the random 10.2M-parameter Qwen2 of `grpo_step.py` on the same pairs, whose two responses follow one prompt,
with 8 pairs per update and one thread; TRL with padding, and DPO also without. The reference of DPO is computed in each
update. Each implementation runs in a separate process. The measurement is over `--steps` updates after one warm-up
update, and includes the CPU time of child processes. Tokens are those of both sequences of a pair, so that a prompt
counts twice, without padding; their number is the mean of the pairs.
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

from grpo_step import StepClock, cpu_seconds, peak_mb
from sft import texts

PAIRS_PER_UPDATE, MAX_TOKENS = 8, 512
PEERS = {
    f"{algorithm}, {name}": (tool, algorithm, dtype, mode)
    for algorithm, modes in (("DPO", ("padded", "padding-free")), ("reward model", ("padded",)))
    for name, tool, dtype, mode in (
        ("Strop float32", "strop", "float32", ""),
        ("Strop bfloat16", "strop", "bfloat16", ""),
        *(
            (f"TRL {dtype}, {mode}", "trl", dtype, mode)
            for dtype in ("bfloat16", "float32")
            for mode in modes
        ),
    )
}


@dataclass(frozen=True)
class Measured:
    """Measurement of one implementation."""

    cpu_seconds: float
    """CPU time in seconds."""
    peak_mb: float
    """Peak resident memory in MB."""
    first_loss: float
    """Loss of the first update."""


def pairs(count: int, prompt_words: int) -> list[dict[str, str]]:
    """Generate prompts of `prompt_words` to twice as many words, and two responses of 5 to 250 words each."""
    rows, draw = texts(2 * count), random.Random(1)
    words = " ".join(row["completion"] for row in rows).split()
    return [
        {
            "prompt": " ".join(draw.choices(words, k=draw.randint(prompt_words, 2 * prompt_words))),
            "chosen": one["completion"],
            "rejected": other["completion"],
        }
        for one, other in zip(rows[::2], rows[1::2], strict=True)
    ]


def run_strop(folder: Path, algorithm: str, dtype: str, _mode: str, steps: int) -> Measured:
    """Measure Strop, with a callback that records the CPU time after each step."""
    import strop

    clock = StepClock()
    run = strop.load(
        {
            "name": f"{algorithm}-{dtype}".replace(" ", "-"),
            "output": str(folder / "runs"),
            "model": {"path": str(folder / "model"), "compute_dtype": dtype},
            "data": {
                "train": {"path": str(folder / "rows.jsonl"), "chosen": "chosen", "rejected": "rejected"},
                "max_prompt_tokens": MAX_TOKENS,
                "max_response_tokens": MAX_TOKENS,
            },
            "algorithm": "dpo" if algorithm == "DPO" else "reward_model",
            "trainer": {
                "duration": f"{steps + 1} steps",
                "tasks_per_step": PAIRS_PER_UPDATE,
                "microbatch": "4096 tokens",
                "optimizer": {"type": "adamw", "lr": 1e-4},
            },
            "record": {"monitors": [], "report": False},
        }
    )
    result = strop.train(run, callbacks=[clock])
    rows = [json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()][1:]
    return Measured(clock.step_ends[-1] - clock.step_ends[0], peak_mb(), rows[0]["loss"])


def run_trl(folder: Path, algorithm: str, dtype: str, mode: str, steps: int) -> Measured:
    """Measure TRL's DPOTrainer or RewardTrainer, with a callback that records CPU time after each update."""
    from datasets import load_dataset
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, TrainerCallback
    from trl import DPOConfig, DPOTrainer, RewardConfig, RewardTrainer

    step_ends: list[float] = []

    class TrlClock(TrainerCallback):
        def on_step_end(self, *_: object, **__: object) -> None:
            step_ends.append(cpu_seconds())

    options = {
        "output_dir": str(folder / "trl"),
        "per_device_train_batch_size": PAIRS_PER_UPDATE,
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
    rows = load_dataset("json", data_files=str(folder / "rows.jsonl"), split="train").map(
        lambda row: {
            "prompt": [{"role": "user", "content": row["prompt"]}],
            **{name: [{"role": "assistant", "content": row[name]}] for name in ("chosen", "rejected")},
        }
    )
    common = {"train_dataset": rows, "callbacks": [TrlClock()]}
    if algorithm == "DPO":
        trainer = DPOTrainer(
            AutoModelForCausalLM.from_pretrained(folder / "model", dtype="float32"),
            args=DPOConfig(padding_free=mode == "padding-free", **options),
            **common,
        )
    else:
        model = AutoModelForSequenceClassification.from_pretrained(
            folder / "model", dtype="float32", num_labels=1
        )
        trainer = RewardTrainer(model, args=RewardConfig(**options), **common)
    trainer.train()
    loss = next(row["loss"] for row in trainer.state.log_history if "loss" in row)
    return Measured(step_ends[-1] - step_ends[0], peak_mb(), float(loss))


def prepare(folder: Path, steps: int, prompt_words: int) -> float:
    """Write the model and the pairs that all implementations share; returns the tokens of an update."""
    from strop.config.schema.model import ModelConfig
    from strop.models.loading import load_tokenizer
    from strop.models.tiny import make_model

    rows = pairs(PAIRS_PER_UPDATE * (steps + 2), prompt_words)
    corpus = [text for row in rows for text in row.values()]
    make_model(folder / "model", corpus, vocab_size=2048, hidden_size=384, layers=6, heads=6, kv_heads=2)
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tokenizer = load_tokenizer(ModelConfig(path=str(folder / "model")))
    sizes = [
        len(tokenizer(row["prompt"] + row[name])["input_ids"])
        for row in rows
        for name in ("chosen", "rejected")
    ]
    return PAIRS_PER_UPDATE * sum(sizes) / len(rows)


def compare(steps: int, prompt_words: int, only: str) -> None:
    """Run all implementations and print a table."""
    with tempfile.TemporaryDirectory() as name:
        tokens = steps * prepare(Path(name), steps, prompt_words)
        measured: dict[str, Measured] = {}
        for peer in PEERS:
            if only not in peer:
                continue
            command = [sys.executable, __file__, "--peer", peer, "--folder", name, "--steps", str(steps)]
            done = subprocess.run(
                command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
            )
            if done.returncode:
                sys.exit(f"{peer} failed:\n{done.stdout}\n{done.stderr}")
            measured[peer] = Measured(**json.loads(done.stdout.splitlines()[-1]))
        print("| implementation | tokens per CPU-second | relative to TRL's best | peak MB | first loss |")
        print("| --- | --- | --- | --- | --- |")
        for peer, m in measured.items():
            algorithm = peer.partition(", ")[0]
            best = min(
                each.cpu_seconds for other, each in measured.items() if other.startswith(f"{algorithm}, TRL")
            )
            figures = f"{tokens / m.cpu_seconds:,.0f} | {best / m.cpu_seconds:.2f} | {m.peak_mb:.0f}"
            print(f"| {peer} | {figures} | {m.first_loss:.3f} |")


def main() -> None:
    """Run the command line; `--peer` and `--folder` are for the processes that this script starts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--prompt-words", type=int, default=60, help="minimum length of a prompt, in words")
    parser.add_argument("--only", default="", help="part of the names of the implementations to run")
    parser.add_argument("--peer", choices=PEERS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.peer is None:
        compare(args.steps, args.prompt_words, args.only)
        return
    tool, algorithm, dtype, mode = PEERS[args.peer]
    run = run_strop if tool == "strop" else run_trl
    print(json.dumps(run(args.folder, algorithm, dtype, mode, args.steps).__dict__))


if __name__ == "__main__":
    main()
