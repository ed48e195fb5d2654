"""Cost of a GRPO step as a function of rollouts per task, prompt length and response length.

    .venv/bin/python benchmarks/step_cost.py

Measures Strop only, with the model of `grpo_step.py`, in bfloat16, with one thread and 8 tasks per step. For a task
with a prompt of P tokens and n responses of R tokens, a step without shared prompts would encode n (P + R) tokens;
Strop encodes P + n R tokens, in sampling and in training.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from grpo_step import prepare

TASKS = 8
DEFAULTS = {"rollouts": 8, "words": 16, "response": 64}
VARIATIONS = {"rollouts": (4, 8, 16, 32), "words": (16, 64, 256), "response": (32, 64, 128, 256)}
STEPS = 3


def measure(folder: Path, rollouts: int, response: int) -> dict[str, float]:
    """Return the median seconds of a step, by phase. Runs in a separate process."""
    import strop

    run = strop.load(
        {
            "name": "cost",
            "output": str(folder / "runs"),
            "resume": "never",
            "model": {"path": str(folder / "model"), "compute_dtype": "bfloat16"},
            "data": {
                "train": {"path": str(folder / "prompts.jsonl"), "answer": None},
                "max_prompt_tokens": 2048,
                "max_response_tokens": response,
            },
            "rollout": {"sampling": {"ignore_eos": True}},
            "algorithm": {"type": "grpo", "rollouts_per_task": rollouts},
            "trainer": {"duration": f"{STEPS + 1} steps", "tasks_per_step": TASKS},
            "record": {"monitors": [], "report": False},
        }
    )
    result = strop.train(run, reward=vowels)
    rows = [json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()][-STEPS:]
    names = ("prompt_tokens/mean", "time/sample_seconds", "time/update_seconds", "time/step_seconds")
    return {name: statistics.median(row[name] for row in rows) for name in names}


def vowels(completion: str) -> float:
    """Reward that differs between random responses."""
    return sum(letter in "aeiou" for letter in completion) / 64


def main() -> None:
    """Print the table; with arguments, measure one setting and print it as JSON."""
    if len(sys.argv) > 1:
        folder, rollouts, response = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
        print(json.dumps(measure(folder, rollouts, response)))
        return
    print("| rollouts per task | prompt tokens | response tokens | sample s | update s | step s |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, values in VARIATIONS.items():
        for value in values:
            setting = DEFAULTS | {name: value}
            with tempfile.TemporaryDirectory() as scratch:
                prepare(Path(scratch), setting["words"])
                row = json.loads(
                    subprocess.run(
                        [
                            sys.executable,
                            __file__,
                            scratch,
                            str(setting["rollouts"]),
                            str(setting["response"]),
                        ],
                        capture_output=True,
                        text=True,
                        check=True,
                        env=os.environ | {"OMP_NUM_THREADS": "1"},
                    ).stdout.splitlines()[-1]
                )
            seconds = " | ".join(
                f"{row[f'time/{part}_seconds']:.2f}" for part in ("sample", "update", "step")
            )
            prompt = row["prompt_tokens/mean"]
            print(f"| {setting['rollouts']} | {prompt:.0f} | {setting['response']} | {seconds} |", flush=True)


if __name__ == "__main__":
    main()
