"""An agent with a tool in one file: each rollout has two turns, and the model's own tokens of both are trained.

make quickstart                               # writes the model that this file trains
python examples/agent_in_one_file.py --steps 100
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator

import numpy as np
from grpo_in_one_file import grpo_advantages, sums

import strop


def add(a: int, b: int) -> int:
    """The tool."""
    return a + b


async def agent(task: strop.Task, chat: strop.Chat) -> float:
    """The model writes a call such as `12+30`, sees the tool's result, and answers in its second reply.

    The reward is 1 for the right answer, and 0.1 more for a call that can be computed.
    """
    call = re.search(r"(\d+)\+(\d+)", await chat.reply())
    result = str(add(int(call[1]), int(call[2]))) if call else "no call"
    answer = await chat.reply(result)
    return float(answer.strip() == task.answer) + 0.1 * bool(call)


def train(
    policy: strop.Policy,
    tasks: Iterator[dict[str, str]],
    steps: int,
    tasks_per_step: int = 16,
    max_tokens: int = 8,
    lr: float = 5e-4,
) -> list[float]:
    """Train the policy by GRPO; returns the mean reward of each step, sampled before its update."""
    history = []
    for step in range(1, steps + 1):
        prompts = [next(tasks) for _ in range(tasks_per_step)]
        groups = policy.sample(prompts, n=16, max_tokens=max_tokens, workflow=agent)
        policy.forward_backward(strop.make_batch(groups, grpo_advantages(groups)), loss="grpo")
        policy.step(lr=lr)
        history.append(float(np.mean(strop.group_rewards(groups))))
        turns = np.mean([len(rollout.turns) for group in groups for rollout in group.rollouts])
        print(f"step {step}  reward {history[-1]:.3f}  turns {turns:.1f}")
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
        train(policy, sums(), args.steps)


if __name__ == "__main__":
    main()
