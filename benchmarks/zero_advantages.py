"""Update time with and without `trainer.skip_zero_advantages`: on a mix of groups, and on the quickstart.

    .venv/bin/python benchmarks/zero_advantages.py
    .venv/bin/python benchmarks/zero_advantages.py --quickstart

The mix is 16 groups of 8 responses of up to 64 tokens, with the model of `grpo_step.py` in bfloat16 and one thread; in
half of the groups all rewards are equal. Both settings train on the same groups in turn, in one process; the CPU time
is the median over the rounds. The quickstart is trained twice, with the same seed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from grpo_step import prepare

GROUPS, ROLLOUTS, PROMPT_TOKENS, RESPONSE_TOKENS = 16, 8, 32, 64
ROUNDS = 3


def mixed_groups(vocabulary: int) -> list[Any]:
    """Groups of random responses; the rewards of every second group are equal."""
    import numpy as np
    from experiences import unsampled

    from strop.types import ExperienceGroup

    random = np.random.default_rng(0)
    groups = []
    for number in range(GROUPS):
        prompt = random.integers(5, vocabulary, PROMPT_TOKENS)
        members = []
        for index in range(ROLLOUTS):
            answer = random.integers(
                5, vocabulary, random.integers(RESPONSE_TOKENS // 2, RESPONSE_TOKENS + 1)
            )
            reward = float(index % 2) if number % 2 else 1.0
            tokens = np.concatenate([prompt, answer])
            members.append(unsampled(number, index, tokens, PROMPT_TOKENS, reward))
        groups.append(ExperienceGroup(str(number), tuple(members)))
    return groups


def measure_mix(model: Path, tasks_per_update: int, kl_loss: Mapping[str, Any] | None) -> dict[bool, float]:
    """CPU seconds of a step's updates, by `skip_zero_advantages`."""
    from strop.algorithms.registry import LossSpec
    from strop.config.schema import Run
    from strop.run.optimize.policy_optimizer import PolicyOptimizer, StepBatch
    from strop.run.optimize.rollout_updater import RolloutUpdater
    from strop.run.state.horizon import Horizon
    from strop.training.engine import local_policy

    rate = cast(Any, SimpleNamespace(lr=lambda step, update: 1e-6, weight_decay=lambda step, update: None))
    updaters = {}
    for skip in (False, True):
        run = Run.model_validate(
            {
                "model": {"path": str(model), "compute_dtype": "bfloat16"},
                "data": {"train": {"path": "none.jsonl"}},
                "reward": "exact",
                "algorithm": {"type": "grpo", "rollouts_per_task": ROLLOUTS, "kl_loss": kl_loss},
                "trainer": {
                    "tasks_per_step": GROUPS,
                    "tasks_per_update": tasks_per_update,
                    "microbatch": "32 sequences",
                    "skip_zero_advantages": skip,
                },
            }
        )
        updaters[skip] = RolloutUpdater(
            PolicyOptimizer(local_policy(run), LossSpec.of(run), rate),
            cast(Any, run.algorithm),
            run.trainer,
            Horizon(steps=99, updates=999, steps_per_epoch=99, updates_per_step=GROUPS // tasks_per_update),
            max_response_tokens=RESPONSE_TOKENS,
            seed=1,
        )
    groups = mixed_groups(2048)
    seconds: dict[bool, list[float]] = {False: [], True: []}
    for step in range(1, ROUNDS + 2):
        for skip, updater in updaters.items():
            started = time.process_time()
            updater.update(StepBatch(groups), step=step, updates_done=0)
            seconds[skip].append(time.process_time() - started)
    return {skip: statistics.median(each[1:]) for skip, each in seconds.items()}


def compare_mix() -> None:
    """Print the table of the mix."""
    import torch

    torch.set_num_threads(1)
    print("| loss | updates per step | full, CPU-seconds | skipped, CPU-seconds | ratio |")
    print("| --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as name:
        prepare(Path(name), words=16)
        for label, kl_loss in (("policy loss", None), ("policy loss and KL", {"coef": 0.001})):
            for per_update in (GROUPS, GROUPS // 4):
                found = measure_mix(Path(name) / "model", per_update, kl_loss)
                cells = (label, GROUPS // per_update, *(f"{found[skip]:.2f}" for skip in (False, True)))
                print(f"| {' | '.join(map(str, cells))} | {found[True] / found[False]:.2f} |")


def compare_quickstart(steps: int) -> None:
    """Print the table of the quickstart."""
    import strop

    example = Path(__file__).parents[1] / "examples" / "quickstart"
    sys.path.insert(0, str(example))
    from quickstart import prepare as prepare_quickstart

    print("| computed | update and log-prob seconds | skipped sequences | held-out reward |")
    print("| --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as name:
        out = Path(name) / "quickstart"
        out.mkdir()
        os.environ["QUICKSTART"] = str(out)
        prepare_quickstart(out, 1)
        for skip in (False, True):
            overrides = [
                f"output={name}",
                f"project=skip-{skip}",
                f"trainer.skip_zero_advantages={str(skip).lower()}",
                f"trainer.stop_after={steps} steps",
            ]
            result = strop.train(strop.load(example / "run.yaml", overrides))
            lines = (result.folder / "metrics.jsonl").read_text().splitlines()
            print(quickstart_row(skip, [json.loads(line) for line in lines]))


def quickstart_row(skip: bool, rows: list[Mapping[str, float]]) -> str:
    """One row of the table, from the metrics of a run."""
    trained = [row for row in rows if "time/update_seconds" in row]
    seconds = sum(row["time/update_seconds"] + row["time/logprobs_seconds"] for row in trained)
    skipped = sum(row["skipped_sequences"] * row["updates"] for row in trained)
    share = skipped / sum(row["rollouts/count"] for row in trained)
    reward = [row["eval/held-out/reward"] for row in rows if "eval/held-out/reward" in row][-1]
    label = "without zero advantages" if skip else "all"
    return f"| {label} | {seconds:.1f} | {share:.0%} | {reward:.3f} |"


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quickstart", action="store_true", help="train the quickstart instead of the mix")
    parser.add_argument("--steps", type=int, default=200, help="steps of the quickstart")
    args = parser.parse_args()
    if args.quickstart:
        compare_quickstart(args.steps)
    else:
        compare_mix()


if __name__ == "__main__":
    main()
