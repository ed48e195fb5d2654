"""CPU time of short commands, which is mostly start-up time, and of the scorer: `python benchmarks/startup.py`."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

COMMANDS = (
    ("--help",),
    ("check", "run.yaml"),
    ("explain", "run.yaml", "trainer.tasks_per_step=8"),
    ("convert", "run.yaml", "--to", "strop"),
    ("verl", "ppo", "--explain", "algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=4"),
)
REPEATS = 5


def write_run(folder: Path) -> None:
    """Write a run file, and a model folder and data that pass the checks before a start."""
    model = folder / "m"
    model.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (model / name).write_text("{}")
    (folder / "train.jsonl").write_text(json.dumps({"prompt": "1+1", "answer": "2"}) + "\n")
    (folder / "run.yaml").write_text(
        "model: {path: ./m}\ndata:\n  train: {path: train.jsonl}\nreward: exact\n"
    )


def command_seconds(words: Sequence[str], folder: Path) -> float:
    """Measure the CPU seconds of one command in a separate process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "strop", *words], capture_output=True, cwd=folder, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def scorer_seconds() -> float:
    """Measure the CPU seconds that this process needs to score 1,000 responses by the gsm8k reward."""
    from strop.config.schema.reward import RewardConfig
    from strop.rewards.scorer import Scorer
    from tests.rewards.builders import group

    groups = [group([f"so\n#### {n + k % 2}" for k in range(8)], str(n), name=str(n)) for n in range(125)]
    with Scorer(RewardConfig(functions=[{"function": "gsm8k"}])) as scorer:
        scorer.score(groups)
        started = time.process_time()
        scorer.score(groups)
        return time.process_time() - started


def main() -> None:
    """Print a table of CPU seconds."""
    print(f"| operation | CPU-seconds, minimum of {REPEATS} |")
    print("| --- | --- |")
    with tempfile.TemporaryDirectory() as name:
        write_run(Path(name))
        for words in COMMANDS:
            seconds = min(command_seconds(words, Path(name)) for _ in range(REPEATS))
            print(f"| `strop {words[0]}` | {seconds:.2f} |")
    sys.path.insert(0, str(Path(__file__).parents[1]))
    print(f"| 1,000 responses scored by gsm8k | {min(scorer_seconds() for _ in range(REPEATS)):.3f} |")


if __name__ == "__main__":
    main()
