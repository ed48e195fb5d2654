"""Predicted cost of the ranks of a trainer on lengths of GSM8K: micro-batches in turn, and balanced by cost.

    .venv/bin/python benchmarks/rank_balance.py --data gsm8k/train.jsonl

Each step has 64 tasks with 8 responses. A prompt has the length of a question, in characters over 4; a response that
of its answer, times a log-normal factor with sigma 0.5. Micro-batches have at most 16,384 tokens, and the model has a
hidden size of 896. Spread: the largest rank's cost over the mean. Time: the sum over rounds of the most expensive
micro-batch, over the time of ranks that are never idle. Means over the steps.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from experiences import unsampled

from strop.config.units import Amount
from strop.data.packing import plan_micro_batches
from strop.training.ranks.share import plan_for_ranks, predicted_cost, predicted_time, rank_costs
from strop.types import Experience

TASKS, ROLLOUTS, STEPS, HIDDEN = 64, 8, 10, 896
LIMIT = Amount(16384, "tokens")


def step_experiences(rows: Sequence[dict[str, str]], random: Any) -> list[Experience]:
    """One step's experiences, with the lengths of random tasks."""
    found = []
    for number in random.choice(len(rows), TASKS, replace=False):
        row = rows[number]
        prompt = max(2, len(row["question"]) // 4)
        for index, factor in enumerate(random.lognormal(0, 0.5, ROLLOUTS)):
            answer = max(1, int(len(row["answer"]) / 4 * factor))
            found.append(unsampled(number, index, np.full(prompt + answer, 3), prompt))
    return found


def measure(experiences: Sequence[Experience], ranks: int) -> tuple[float, float, float, float]:
    """Spread and time of micro-batches in turn, and of balanced ones."""
    in_turn = plan_micro_batches(experiences, LIMIT, share_prompts=True)
    balanced = plan_for_ranks(experiences, LIMIT, ranks=ranks, hidden_size=HIDDEN, share_prompts=True)
    ideal = sum(predicted_cost(plan, experiences, HIDDEN) for plan in in_turn) / ranks
    found = []
    for plan in (in_turn, balanced):
        costs = rank_costs(plan, experiences, ranks=ranks, hidden_size=HIDDEN)
        time = predicted_time(plan, experiences, ranks=ranks, hidden_size=HIDDEN)
        found += [max(costs) / mean(costs), time / ideal]
    return found[0], found[1], found[2], found[3]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True, help="JSON lines with `question` and `answer`")
    args = parser.parse_args()
    rows = [json.loads(line) for line in args.data.read_text().splitlines()]
    random = np.random.default_rng(0)
    steps = [step_experiences(rows, random) for _ in range(STEPS)]
    print("| ranks | spread in turn | spread balanced | time in turn | time balanced |")
    print("| --- | --- | --- | --- | --- |")
    for ranks in (2, 4, 8):
        means = [mean(column) for column in zip(*(measure(step, ranks) for step in steps), strict=True)]
        print(f"| {ranks} | {means[0]:.3f} | {means[2]:.3f} | {means[1]:.3f} | {means[3]:.3f} |")


if __name__ == "__main__":
    main()
