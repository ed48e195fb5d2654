"""One GRPO step of Strop beside TRL's: CPU-seconds, peak memory, and the ratio.

    make .venv/bench && .venv/bin/python benchmarks/grpo_step.py

Both train the same random 10.2M-parameter Qwen2 on the same prompts with the same reward, full
fine-tuning without a KL term: 16 prompts x 8 rollouts, at most 64 new tokens, one thread. Each peer
runs in a process of its own; a figure is the median of `--steps` steps after one warm-up step, and
counts the CPU time of the peer's child processes too.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PROMPTS, ROLLOUTS, NEW_TOKENS = 16, 8, 64
PEERS = {
    "strop float32": ("strop", "float32", 0),
    "strop bfloat16": ("strop", "bfloat16", 0),
    "TRL float32, micro-batch 32": ("trl", "float32", 32),
    "TRL bfloat16, micro-batch 32": ("trl", "bfloat16", 32),
}


@dataclass(frozen=True)
class Measured:
    """What one peer took for a step."""

    cpu_seconds: float
    peak_mb: float
    tokens: float
    parts: dict[str, float]


def prompts(words: int) -> list[str]:
    """Word problems of about so many words, all different."""
    draw = random.Random(0)
    names, things = ("Ann", "Ben", "Cleo", "Dan"), ("apples", "pens", "coins", "books")

    def sentence() -> str:
        name, thing = draw.choice(names), draw.choice(things)
        return f"{name} has {draw.randint(2, 99)} {thing} and buys {draw.randint(2, 99)} more."

    return [" ".join(sentence() for _ in range(max(1, words // 8))) for _ in range(PROMPTS * 8)]


def reward(prompts: Sequence, completions: Sequence, **_: object) -> list[float]:
    """How many vowels an answer has: something that differs between random answers."""
    texts = [c if isinstance(c, str) else c[-1]["content"] for c in completions]
    return [sum(letter in "aeiou" for letter in text) / 64 for text in texts]


def cpu_seconds() -> float:
    """Of this process and its children, all threads."""
    import psutil

    process = psutil.Process()
    everyone = [process, *process.children(recursive=True)]
    return sum(t.user + t.system for t in (p.cpu_times() for p in everyone))


def peak_mb() -> float:
    """Peak resident memory of this process."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def run_strop(folder: Path, dtype: str, steps: int) -> Measured:
    """Strop's own driver, step by step."""
    import strop
    from strop.run.driver import Driver

    marks: list[float] = []
    take_step = Driver._step

    def marked(driver: Driver, step: int) -> None:
        take_step(driver, step)
        marks.append(cpu_seconds())

    Driver._step = marked
    run = strop.load(
        {
            "name": dtype,
            "output": str(folder / "runs"),
            "model": {"path": str(folder / "model"), "compute_dtype": dtype},
            "data": {
                "train": {"path": str(folder / "prompts.jsonl"), "answer": None},
                "max_prompt_tokens": 1024,
                "max_response_tokens": NEW_TOKENS,
            },
            "reward": f"{Path(__file__).resolve()}:reward",
            "algorithm": {"type": "grpo", "rollouts_per_task": ROLLOUTS},
            "trainer": {
                "duration": f"{steps + 1} steps",
                "tasks_per_step": PROMPTS,
                "microbatch": "32 sequences",
            },
            "record": {"monitors": [], "report": False},
        }
    )
    result = strop.train(run)
    rows = [json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()]
    parts = {
        name: statistics.median(row[f"time/{name}_seconds"] for row in rows[-steps:])
        for name in ("sample", "reward", "update", "publish")
    }
    per_step = statistics.median(b - a for a, b in itertools.pairwise(marks))
    return Measured(per_step, peak_mb(), rows[-1]["sampled_tokens"], parts)


def run_trl(folder: Path, dtype: str, micro_batch: int, steps: int) -> Measured:
    """TRL's GRPOTrainer, with a callback that marks the steps."""
    from datasets import load_dataset
    from transformers import AutoModelForCausalLM, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    marks: list[float] = []

    class Marks(TrainerCallback):
        def on_step_end(self, *_: object, **__: object) -> None:
            marks.append(cpu_seconds())

    config = GRPOConfig(
        output_dir=str(folder / "trl"),
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=PROMPTS * ROLLOUTS // micro_batch,
        num_generations=ROLLOUTS,
        max_completion_length=NEW_TOKENS,
        max_steps=steps + 1,
        beta=0.0,
        bf16=dtype == "bfloat16",
        use_cpu=True,
        gradient_checkpointing=False,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder / "model"),
        reward_funcs=reward,
        args=config,
        train_dataset=load_dataset("json", data_files=str(folder / "prompts.jsonl"), split="train"),
        callbacks=[Marks()],
    )
    trainer.train()
    per_step = statistics.median(b - a for a, b in itertools.pairwise(marks))
    return Measured(per_step, peak_mb(), PROMPTS * ROLLOUTS * NEW_TOKENS, {})


def prepare(folder: Path, words: int) -> None:
    """The model and the prompts that all peers share."""
    from strop.models.tiny import make_model

    texts = prompts(words)
    draw = random.Random(1)
    syllables = [a + b for a in "bdfgklmnprst" for b in "aeiou"]
    made_up = [" ".join("".join(draw.choices(syllables, k=3)) for _ in range(20)) for _ in range(500)]
    make_model(
        folder / "model", texts + made_up, vocab_size=2048, hidden_size=384, layers=6, heads=6, kv_heads=2
    )
    rows = ({"prompt": [{"role": "user", "content": text}]} for text in texts)
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def compare(words: int, steps: int) -> None:
    """Run all peers on prompts of about so many words, and print a table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder, words)
        found: dict[str, Measured] = {}
        for peer in PEERS:
            command = [sys.executable, __file__, "--peer", peer, "--folder", name, "--steps", str(steps)]
            done = subprocess.run(
                command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
            )
            if done.returncode:
                sys.exit(f"{peer} failed:\n{done.stdout}\n{done.stderr}")
            found[peer] = Measured(**json.loads(done.stdout.splitlines()[-1]))
        best = min(m.cpu_seconds for peer, m in found.items() if peer.startswith("TRL"))
        print(
            f"\nAbout {words} words a prompt, {PROMPTS} x {ROLLOUTS} rollouts of up to {NEW_TOKENS} tokens\n"
        )
        print("| peer | CPU-seconds per step | of TRL's best | peak MB | parts, seconds |")
        print("| --- | --- | --- | --- | --- |")
        for peer, m in found.items():
            parts = ", ".join(f"{name} {seconds:.2f}" for name, seconds in m.parts.items())
            print(
                f"| {peer} | {m.cpu_seconds:.2f} | {m.cpu_seconds / best:.2f} | {m.peak_mb:.0f} | {parts} |"
            )


def main() -> None:
    """The command line; `--peer` is for the processes that it starts itself."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--words", type=int, nargs="+", default=[16, 150])
    parser.add_argument("--peer", choices=PEERS)
    parser.add_argument("--folder", type=Path)
    args = parser.parse_args()
    if args.peer is None:
        for words in args.words:
            compare(words, args.steps)
        return
    kind, dtype, micro_batch = PEERS[args.peer]
    if kind == "strop":
        measured = run_strop(args.folder, dtype, args.steps)
    else:
        measured = run_trl(args.folder, dtype, micro_batch, args.steps)
    print(json.dumps(measured.__dict__))


if __name__ == "__main__":
    main()
