"""GRPO in one file: a training loop on the four verbs of `strop.Policy`.

make quickstart                                # writes the model that this file trains
python examples/grpo_in_one_file.py --steps 100
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

import strop

TASKS_PER_STEP, ROLLOUTS_PER_TASK, GROUPS_PER_UPDATE = 64, 16, 16


def sums(seed: int = 1) -> Iterator[dict[str, str]]:
    """Sums of two two-digit numbers, without end."""
    draw = random.Random(seed)
    while True:
        a, b = draw.randrange(10, 100), draw.randrange(10, 100)
        yield {"prompt": f"{a}+{b}=", "answer": str(a + b)}


def is_right(completion: str, answer: str) -> float:
    """1 for the answer, 0 for anything else."""
    return float(completion.strip() == answer)


def grpo_advantages(groups: Sequence[strop.RolloutGroup]) -> np.ndarray[Any, Any]:
    """[groups, rollouts] Rewards minus their group's mean, over its standard deviation (arXiv 2402.03300)."""
    rewards = np.array(strop.group_rewards(groups))
    centered = rewards - rewards.mean(axis=1, keepdims=True)
    return np.asarray(centered / (rewards.std(axis=1, ddof=1, keepdims=True) + 1e-6))


def train(
    policy: strop.Policy,
    tasks: Iterator[dict[str, str]],
    reward: Callable[..., float],
    steps: int,
    tasks_per_step: int = TASKS_PER_STEP,
    max_tokens: int = 8,
    lr: float = 5e-4,
) -> list[float]:
    """Train the policy; returns the mean reward of each step, sampled before its updates."""
    history = []
    for step in range(1, steps + 1):
        prompts = [next(tasks) for _ in range(tasks_per_step)]
        groups = policy.sample(prompts, n=ROLLOUTS_PER_TASK, max_tokens=max_tokens)
        groups = strop.score(groups, reward)
        advantages = grpo_advantages(groups)
        for first in range(0, len(groups), GROUPS_PER_UPDATE):
            part = slice(first, first + GROUPS_PER_UPDATE)
            batch = strop.make_batch(groups[part], advantages[part])
            metrics = policy.forward_backward(batch, loss="grpo")
            norm = policy.step(lr=lr)
        history.append(float(np.mean(strop.group_rewards(groups))))
        print(f"step {step}  reward {history[-1]:.3f}  loss {metrics['loss']:.4f}  grad norm {norm:.2f}")
    return history


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="runs/quickstart/warm-start", help="model folder")
    parser.add_argument("--steps", type=int, default=100, help="training steps")
    parser.add_argument("--save", default="runs/grpo-in-one-file", help="folder of the trained model")
    args = parser.parse_args()
    with strop.Policy(args.model) as policy:
        train(policy, sums(), is_right, args.steps)
        print(f"The model is in {policy.save(args.save)}.")


if __name__ == "__main__":
    main()
