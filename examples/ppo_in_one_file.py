"""PPO with a critic in one file, on `strop.Policy` and `strop.Critic`.

make quickstart                               # writes the model that this file trains
python examples/ppo_in_one_file.py --steps 100
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from grpo_in_one_file import is_right, sums

import strop

GAMMA, LAMBDA = 1.0, 0.95
Array = np.ndarray[Any, Any]


def advantages_and_returns(experience: strop.Experience, values: Array) -> tuple[Array, Array]:
    """[L], [L] Generalized advantage estimates (arXiv 1506.02438) and the critic's targets; the reward comes last."""
    targets = np.flatnonzero(experience.loss_mask)
    advantages, returns = np.zeros_like(values), np.zeros_like(values)
    following, advantage = 0.0, 0.0
    for position in reversed(targets):
        reward = experience.reward if position == targets[-1] else 0.0
        delta = reward + GAMMA * following - values[position]
        advantage = delta + GAMMA * LAMBDA * advantage
        advantages[position], returns[position] = advantage, advantage + values[position]
        following = values[position]
    return advantages, returns


def with_advantages(batch: strop.TrainingBatch, critic: strop.Critic) -> strop.TrainingBatch:
    """The batch with the critic's values, its targets, and advantages of mean 0 and deviation 1."""
    values = critic.values(batch)
    found = [advantages_and_returns(*pair) for pair in zip(batch.experiences, values, strict=True)]
    masks = [experience.loss_mask for experience in batch.experiences]
    flat = np.concatenate([own[mask] for (own, _), mask in zip(found, masks, strict=True)])
    whitened = [
        np.where(mask, (own - flat.mean()) / (flat.std() + 1e-8), 0).astype(np.float32)
        for (own, _), mask in zip(found, masks, strict=True)
    ]
    return replace(batch, advantages=whitened, values=values, returns=[returns for _, returns in found])


def train(
    policy: strop.Policy,
    critic: strop.Critic,
    tasks: Iterator[dict[str, str]],
    reward: Callable[..., float],
    steps: int,
    tasks_per_step: int = 256,
    max_tokens: int = 8,
    lr: float = 5e-4,
) -> list[float]:
    """Train policy and critic, one response per task; returns the mean reward of each step."""
    history = []
    for step in range(1, steps + 1):
        prompts = [next(tasks) for _ in range(tasks_per_step)]
        groups = strop.score(policy.sample(prompts, max_tokens=max_tokens), reward)
        batch = with_advantages(strop.make_batch(groups, np.zeros((len(groups), 1))), critic)
        for _ in range(2):  # epochs over the batch
            policy.forward_backward(batch, loss="ppo")
            policy.step(lr=lr)
            value_loss = critic.forward_backward(batch)["loss"]
            critic.step(lr=1e-3)
        history.append(float(np.mean(strop.group_rewards(groups))))
        print(f"step {step}  reward {history[-1]:.3f}  value loss {value_loss:.4f}")
    return history


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="runs/quickstart/warm-start", help="model folder")
    parser.add_argument("--steps", type=int, default=100, help="training steps")
    args = parser.parse_args()
    with strop.Policy(args.model) as policy:
        train(policy, strop.Critic(args.model), sums(), is_right, args.steps)


if __name__ == "__main__":
    main()
