"""CPU time and peak memory of one GRPO step of Strop and of TRL.

    make .venv/bench && .venv/bin/python benchmarks/grpo_step.py

Both train the same random 10.2M-parameter Qwen2 on the same prompts with the same reward, by full fine-tuning
without a KL term: 16 prompts x 8 rollouts, at most 64 new tokens, one thread. Each implementation runs in a
separate process. The CPU time is the median of `--steps` steps after one warm-up step, and includes child
processes.
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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROMPTS, ROLLOUTS, NEW_TOKENS = 16, 8, 64
PEERS = {
    "Strop float32": ("strop", "float32", 0),
    "Strop bfloat16": ("strop", "bfloat16", 0),
    "TRL float32, micro-batch 32": ("trl", "float32", 32),
    "TRL bfloat16, micro-batch 32": ("trl", "bfloat16", 32),
}


@dataclass(frozen=True)
class Measured:
    """Measurement of one implementation."""

    cpu_seconds: float
    """CPU time of a step in seconds, median over the steps."""
    peak_mb: float
    """Peak resident memory in MB."""
    phases: dict[str, float]
    """Wall time of each phase of a step in seconds; empty for TRL."""


class StepClock:
    """Callback of `strop.train` that records the CPU time after each step."""

    def __init__(self) -> None:
        self.step_ends: list[float] = []

    def on_step(self, metrics: Mapping[str, float]) -> None:
        """Record the CPU time."""
        self.step_ends.append(cpu_seconds())


def prompts(words: int) -> list[str]:
    """Generate distinct word problems of about `words` words each."""
    draw = random.Random(0)
    names, things = ("Ann", "Ben", "Cleo", "Dan"), ("apples", "pens", "coins", "books")

    def sentence() -> str:
        name, thing = draw.choice(names), draw.choice(things)
        return f"{name} has {draw.randint(2, 99)} {thing} and buys {draw.randint(2, 99)} more."

    return [" ".join(sentence() for _ in range(max(1, words // 8))) for _ in range(PROMPTS * 8)]


def reward(prompts: Sequence[Any], completions: Sequence[Any], **_: object) -> list[float]:
    """Count the vowels of a response: a reward that differs between random responses."""
    texts = [c if isinstance(c, str) else c[-1]["content"] for c in completions]
    return [sum(letter in "aeiou" for letter in text) / 64 for text in texts]


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and its children, all threads included."""
    import psutil

    current = psutil.Process()
    times = [process.cpu_times() for process in (current, *current.children(recursive=True))]
    return sum(each.user + each.system for each in times)


def peak_mb() -> float:
    """Return the peak resident memory of this process in MB."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def run_strop(folder: Path, dtype: str, steps: int) -> Measured:
    """Measure Strop, with a callback that records the CPU time after each step."""
    import strop

    clock = StepClock()
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
    result = strop.train(run, callbacks=[clock])
    rows = [json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()]
    phases = {
        name: statistics.median(row[f"time/{name}_seconds"] for row in rows[-steps:])
        for name in ("sample", "reward", "update", "publish")
    }
    return Measured(median_step(clock.step_ends), peak_mb(), phases)


def run_trl(folder: Path, dtype: str, micro_batch: int, steps: int) -> Measured:
    """Measure TRL's GRPOTrainer, with a callback that records the CPU time after each step."""
    from datasets import load_dataset
    from transformers import AutoModelForCausalLM, TrainerCallback
    from trl import GRPOTrainer

    step_ends: list[float] = []

    class TrlClock(TrainerCallback):
        def on_step_end(self, *_: object, **__: object) -> None:
            step_ends.append(cpu_seconds())

    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder / "model"),
        reward_funcs=reward,
        args=trl_config(
            folder / "trl", micro_batch, steps + 1, new_tokens=NEW_TOKENS, bf16=dtype == "bfloat16"
        ),
        train_dataset=load_dataset("json", data_files=str(folder / "prompts.jsonl"), split="train"),
        callbacks=[TrlClock()],
    )
    trainer.train()
    return Measured(median_step(step_ends), peak_mb(), {})


def trl_config(folder: Path, micro_batch: int, steps: int, *, new_tokens: int, bf16: bool) -> Any:
    """TRL's GRPOConfig of a step with PROMPTS x ROLLOUTS responses and without a KL term, on a CPU."""
    from trl import GRPOConfig

    return GRPOConfig(
        output_dir=str(folder),
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=PROMPTS * ROLLOUTS // micro_batch,
        num_generations=ROLLOUTS,
        max_completion_length=new_tokens,
        max_steps=steps,
        beta=0.0,
        bf16=bf16,
        use_cpu=True,
        gradient_checkpointing=False,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )


def median_step(step_ends: Sequence[float]) -> float:
    """Return the median CPU time of a step, from the CPU times after each step."""
    return statistics.median(end - begin for begin, end in itertools.pairwise(step_ends))


def prepare(folder: Path, words: int) -> None:
    """Write the model and the prompts that all implementations share."""
    from strop.models.tiny import make_model

    texts = prompts(words)
    draw = random.Random(1)
    syllables = [a + b for a in "bdfgklmnprst" for b in "aeiou"]
    random_texts = [" ".join("".join(draw.choices(syllables, k=3)) for _ in range(20)) for _ in range(500)]
    make_model(
        folder / "model",
        texts + random_texts,
        vocab_size=2048,
        hidden_size=384,
        layers=6,
        heads=6,
        kv_heads=2,
    )
    rows = ({"prompt": [{"role": "user", "content": text}]} for text in texts)
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def compare(words: int, steps: int) -> None:
    """Run all implementations on prompts of about `words` words, and print a table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder, words)
        measured: dict[str, Measured] = {}
        for peer in PEERS:
            command = [sys.executable, __file__, "--peer", peer, "--folder", name, "--steps", str(steps)]
            done = subprocess.run(
                command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
            )
            if done.returncode:
                sys.exit(f"{peer} failed:\n{done.stdout}\n{done.stderr}")
            measured[peer] = Measured(**json.loads(done.stdout.splitlines()[-1]))
        best = min(m.cpu_seconds for peer, m in measured.items() if peer.startswith("TRL"))
        print(
            f"\nAbout {words} words per prompt, {PROMPTS} x {ROLLOUTS} rollouts of up to {NEW_TOKENS} tokens\n"
        )
        print(
            "| implementation | CPU-seconds per step | relative to TRL's best | peak MB | phases, seconds |"
        )
        print("| --- | --- | --- | --- | --- |")
        for peer, m in measured.items():
            phases = ", ".join(f"{name} {seconds:.2f}" for name, seconds in m.phases.items())
            print(
                f"| {peer} | {m.cpu_seconds:.2f} | {m.cpu_seconds / best:.2f} | {m.peak_mb:.0f} | {phases} |"
            )


def main() -> None:
    """Run the command line; `--peer` and `--folder` are for the processes that this script starts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--words", type=int, nargs="+", default=[16, 150])
    parser.add_argument("--peer", choices=PEERS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
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
