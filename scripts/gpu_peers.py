"""One GRPO step of TRL or of verl on the model, prompts and lengths of a run of Strop: `gpu_evidence.py` starts this.

    .venv/bin/python scripts/gpu_peers.py trl --folder FOLDER --device cuda --prompts 32 --rollouts 16 --tokens 256

The folder holds `model` and `prompts.jsonl`. The last line of the output is a JSON object with the seconds of each step
after the first and the peak memory in GiB.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STEPS = 4
"""The first of them warms up."""
VERL_STEP = re.compile(r"timing_s/step[:=]\s*([0-9.]+)")


@dataclass(frozen=True, slots=True)
class Work:
    """Size of a step, and where it runs."""

    folder: Path
    device: str
    prompts: int
    rollouts: int
    tokens: int
    """Most sampled tokens of a response."""


def vowels(prompts: Sequence[Any], completions: Sequence[Any], **_: object) -> list[float]:
    """Fraction of vowels in each response: a reward that differs between random responses."""
    texts = [each if isinstance(each, str) else each[-1]["content"] for each in completions]
    return [sum(letter in "aeiou" for letter in text) / max(1, len(text)) for text in texts]


def run_trl(work: Work) -> dict[str, Any]:
    """TRL's GRPOTrainer in bfloat16, without a KL term; it samples with transformers."""
    import torch
    from datasets import load_dataset
    from transformers import AutoModelForCausalLM, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    ends: list[float] = []

    class Clock(TrainerCallback):
        def on_step_end(self, *_: object, **__: object) -> None:
            if work.device == "cuda":
                torch.cuda.synchronize()
            ends.append(time.perf_counter())

    sequences = work.prompts * work.rollouts
    micro_batch = min(32, sequences)
    config = GRPOConfig(
        output_dir=str(work.folder / "trl"),
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=sequences // micro_batch,
        num_generations=work.rollouts,
        max_completion_length=work.tokens,
        max_steps=STEPS,
        beta=0.0,
        bf16=True,
        use_cpu=work.device == "cpu",
        gradient_checkpointing=False,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(work.folder / "model"),
        reward_funcs=vowels,
        args=config,
        train_dataset=load_dataset("json", data_files=str(work.folder / "prompts.jsonl"), split="train"),
        callbacks=[Clock()],
    ).train()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    if work.device == "cuda":
        peak = torch.cuda.max_memory_allocated() / 2**30
    return {"seconds": [end - begin for begin, end in itertools.pairwise(ends)], "gib": peak}


def run_verl(work: Work) -> dict[str, Any]:
    """verl's `main_ppo` with vLLM on one GPU; its own log has the seconds of a step. Raises for a failed run."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    lines = (work.folder / "prompts.jsonl").read_text().splitlines()
    rows = [
        {
            "data_source": "vowels",
            "prompt": json.loads(line)["prompt"],
            "reward_model": {"style": "rule", "ground_truth": ""},
        }
        for line in lines
    ]
    data = work.folder / "prompts.parquet"
    pq.write_table(pa.Table.from_pylist(rows), data)
    reward = work.folder / "verl_reward.py"
    reward.write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
        "    return sum(letter in 'aeiou' for letter in solution_str) / max(1, len(solution_str))\n"
    )
    settings = {
        "algorithm.adv_estimator": "grpo",
        "data.train_files": data,
        "data.val_files": data,
        "data.train_batch_size": work.prompts,
        "data.max_prompt_length": 128,
        "data.max_response_length": work.tokens,
        "actor_rollout_ref.model.path": work.folder / "model",
        "actor_rollout_ref.actor.ppo_mini_batch_size": work.prompts,
        "actor_rollout_ref.actor.use_dynamic_bsz": True,
        "actor_rollout_ref.actor.use_kl_loss": False,
        "actor_rollout_ref.rollout.name": "vllm",
        "actor_rollout_ref.rollout.n": work.rollouts,
        "actor_rollout_ref.rollout.gpu_memory_utilization": 0.4,
        "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz": True,
        "custom_reward_function.path": reward,
        "trainer.logger": "[console]",
        "trainer.n_gpus_per_node": 1,
        "trainer.nnodes": 1,
        "trainer.save_freq": -1,
        "trainer.test_freq": -1,
        "trainer.val_before_train": False,
        "trainer.total_training_steps": STEPS,
    }
    command = [
        sys.executable,
        "-m",
        "verl.trainer.main_ppo",
        *(f"{key}={value}" for key, value in settings.items()),
    ]
    done = subprocess.run(command, cwd=work.folder, capture_output=True, text=True, check=False)
    seconds = [float(found) for found in VERL_STEP.findall(done.stdout)]
    if done.returncode or len(seconds) < 2:
        raise SystemExit(f"verl failed:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return {"seconds": seconds[1:], "gib": None}


PEERS = {"trl": run_trl, "verl": run_verl}


def main() -> None:
    """Run one peer."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("peer", choices=PEERS)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    for name in ("prompts", "rollouts", "tokens"):
        parser.add_argument(f"--{name}", type=int, required=True)
    args = parser.parse_args()
    work = Work(args.folder.resolve(), args.device, args.prompts, args.rollouts, args.tokens)
    print(json.dumps(PEERS[args.peer](work)))


if __name__ == "__main__":
    main()
