"""On-policy distillation in one file: the student samples, and each token's advantage is the teacher's log-ratio.

make quickstart                               # writes a student; its run writes a teacher
python examples/distillation_in_one_file.py --steps 100
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from grpo_in_one_file import sums

import strop


def train(
    student: strop.Policy,
    teacher: strop.Policy,
    tasks: Iterator[dict[str, str]],
    steps: int,
    tasks_per_step: int = 64,
    max_tokens: int = 8,
    lr: float = 5e-4,
) -> list[float]:
    """Train the student; returns an estimate of KL(student || teacher) per token before each step, in nats."""
    history = []
    for step in range(1, steps + 1):
        groups = student.sample([next(tasks) for _ in range(tasks_per_step)], n=4, max_tokens=max_tokens)
        batch = strop.make_batch(groups, np.zeros((len(groups), 4)))
        own, other = student.logprobs(batch), teacher.logprobs(batch)
        ratios = [theirs - mine for mine, theirs in zip(own, other, strict=True)]  # [L], 0 at the prompt
        batch = replace(batch, advantages=ratios, old_logprobs=own)
        student.forward_backward(batch, loss="importance_sampling")
        student.step(lr=lr)
        tokens = sum(experience.response_tokens for experience in batch.experiences)
        history.append(-sum(float(ratio.sum()) for ratio in ratios) / tokens)
        print(f"step {step}  KL {history[-1]:.4f}")
    return history


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--student", default="runs/quickstart/warm-start", help="model folder")
    parser.add_argument("--teacher", default="runs/quickstart/sums/model", help="model folder")
    parser.add_argument("--steps", type=int, default=100, help="training steps")
    args = parser.parse_args()
    with strop.Policy(args.student) as student, strop.Policy(args.teacher) as teacher:
        train(student, teacher, sums(), args.steps)


if __name__ == "__main__":
    main()
