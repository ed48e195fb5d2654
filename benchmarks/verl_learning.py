"""Learning curves of a verl command line on sums in words, with a real small model, by inference engine.

    OMP_NUM_THREADS=1 .venv-vllm/bin/python benchmarks/verl_learning.py --model path/to/SmolLM2-135M-Instruct

Each run is `strop verl ppo ...` in a separate process, without `--here`: GRPO of 16 x 8 responses to "What is 17 + 9?",
bfloat16, greedy evaluation on 64 held-out sums every 5 steps. `native` leaves out `rollout.name`. `--model` is a folder
in Hugging Face's format; docs/engines.md has the figures of SmolLM2-135M-Instruct. Results are stored in `--out`, and
only missing runs are executed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

ROOT = Path(__file__).parents[1]
TRAIN_TASKS, HELD_OUT_TASKS = 400, 64
ACCURACY = "eval/val/reward"
REWARD = '''import re


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    """1 if the last number of the response is the sum."""
    numbers = re.findall(r"\\d+", solution_str)
    return float(bool(numbers) and numbers[-1] == ground_truth)
'''
WEIGHTS = {
    "full": ("actor_rollout_ref.actor.optim.lr=1e-5",),
    "lora": (
        "actor_rollout_ref.actor.optim.lr=1e-4",
        "actor_rollout_ref.model.lora_rank=16",
        "actor_rollout_ref.model.lora_alpha=32",
    ),
}
"""Arguments by the weights that are trained."""


def make_data(folder: Path) -> None:
    """Write the sums of two numbers below 30 in verl's columns, and the reward function."""
    pairs = [(a, b) for a in range(1, 30) for b in range(1, 30)]
    random.Random(0).shuffle(pairs)
    held_out = pairs[TRAIN_TASKS : TRAIN_TASKS + HELD_OUT_TASKS]
    for name, chosen in (("train", pairs[:TRAIN_TASKS]), ("test", held_out)):
        rows = [
            {
                "data_source": "sums",
                "prompt": [{"role": "user", "content": f"What is {a} + {b}?"}],
                "ability": "math",
                "reward_model": {"style": "rule", "ground_truth": str(a + b)},
                "extra_info": {"index": index},
            }
            for index, (a, b) in enumerate(chosen)
        ]
        pq.write_table(pa.Table.from_pylist(rows), folder / f"{name}.parquet")
    (folder / "reward.py").write_text(REWARD)


def command(engine: str, weights: str, seed: int, steps: int, model: Path, folder: Path) -> list[str]:
    """Return verl's command line of a run."""
    named = () if engine == "native" else (f"actor_rollout_ref.rollout.name={engine}",)
    name = f"{engine}-{weights}-{seed}"
    return [
        *(sys.executable, "-m", "strop", "verl", "ppo"),
        "algorithm.adv_estimator=grpo",
        f"data.train_files={folder / 'train.parquet'}",
        f"data.val_files={folder / 'test.parquet'}",
        "data.train_batch_size=16",
        "data.max_prompt_length=64",
        "data.max_response_length=24",
        f"data.seed={seed}",
        f"actor_rollout_ref.model.path={model}",
        "actor_rollout_ref.actor.ppo_mini_batch_size=16",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=16",
        "actor_rollout_ref.actor.use_kl_loss=False",
        "actor_rollout_ref.rollout.n=8",
        "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=16",
        f"custom_reward_function.path={folder / 'reward.py'}",
        "trainer.device=cpu",
        "trainer.n_gpus_per_node=1",
        "trainer.nnodes=1",
        "trainer.logger=console",
        "trainer.project_name=sums",
        f"trainer.experiment_name={name}",
        f"trainer.default_local_dir={folder / name}",
        f"trainer.total_training_steps={steps}",
        "trainer.test_freq=5",
        "trainer.save_freq=-1",
        *named,
        *WEIGHTS[weights],
    ]


def measure(engine: str, weights: str, seed: int, steps: int, model: Path, folder: Path) -> list[float]:
    """Run one combination, or read its metrics if it has ended; returns the accuracy of each evaluation."""
    metrics = folder / f"{engine}-{weights}-{seed}" / "metrics.jsonl"
    rows = read_rows(metrics) if metrics.is_file() else []
    if not rows or rows[-1]["step"] < steps:
        environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
        line = command(engine, weights, seed, steps, model, folder)
        if subprocess.run(line, cwd=ROOT, env=environment, check=False).returncode:
            sys.exit(f"{' '.join(line)} failed.")
        rows = read_rows(metrics)
    return [row[ACCURACY] for row in rows if ACCURACY in row]


def read_rows(metrics: Path) -> list[dict[str, float]]:
    """Read the metrics of a run."""
    return [json.loads(line) for line in metrics.read_text().splitlines()]


def main() -> None:
    """Run the command line: print a row for each engine and kind of weights."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument(
        "--engines", nargs="+", choices=("native", "vllm", "sglang"), default=["native", "vllm"]
    )
    parser.add_argument("--weights", nargs="+", choices=list(WEIGHTS), default=["full"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "verl-learning")
    args = parser.parse_args()
    folder = args.out.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    make_data(folder)
    print(
        "| engine | weights | accuracy at each evaluation, by seed | mean (range) after |\n|" + " --- |" * 4
    )
    for weights in args.weights:
        for engine in args.engines:
            runs = [
                measure(engine, weights, seed, args.steps, args.model.absolute(), folder)
                for seed in args.seeds
            ]
            curves = "; ".join(", ".join(f"{value:.3f}" for value in run) for run in runs)
            last = [run[-1] for run in runs]
            spread = f"{statistics.mean(last):.3f} ({min(last):.3f} to {max(last):.3f})"
            print(f"| {engine} | {weights} | {curves} | {spread} |", flush=True)


if __name__ == "__main__":
    main()
