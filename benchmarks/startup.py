"""CPU time of commands up to their first result, and of the scorer: `python benchmarks/startup.py`."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
QUICKSTART, AHEAD = ROOT / "examples/quickstart/run.yaml", ROOT / "examples/async/ahead.yaml"
VERL = ("algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=4")
COMMANDS: dict[str, Sequence[object]] = {
    "`strop --help`": ("--help",),
    "`strop check`, the quickstart": ("check", QUICKSTART),
    "`strop plan`, the quickstart": ("plan", QUICKSTART),
    "`strop explain`, the quickstart": ("explain", QUICKSTART, "trainer.tasks_per_step=32"),
    "`strop convert --to strop`, the quickstart": ("convert", QUICKSTART, "--to", "strop"),
    "`strop verl ppo --explain`": ("verl", "ppo", "--explain", *VERL),
    "`strop train`, one step of the quickstart": ("train", QUICKSTART, "trainer.duration=1 steps"),
    "`strop train`, one step with explorer and trainer as processes": (
        "train",
        AHEAD,
        "trainer.duration=1 steps",
    ),
}
REPEATS = 3


def prepare(folder: Path) -> None:
    """Write the tasks of the quickstart and a random model in place of its warm start, which no time depends on."""
    from strop.models.tiny import make_model

    sys.path.insert(0, str(QUICKSTART.parent))
    from quickstart import make_tasks

    make_tasks(folder)
    sizes = {"vocab_size": 300, "hidden_size": 128, "layers": 2, "heads": 4, "kv_heads": 4}
    make_model(folder / "warm-start", ["12+34=46"], **sizes, seed=3)


def command_seconds(words: Sequence[object], folder: Path) -> float:
    """Measure the CPU seconds of one command in a separate process, with its children."""
    shutil.rmtree(folder / "runs", ignore_errors=True)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-m", "strop", *map(str, words)],
        capture_output=True,
        cwd=folder,
        env=os.environ | {"QUICKSTART": str(folder), "OMP_NUM_THREADS": "1"},
        check=True,
    )
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
    sys.path.insert(0, str(ROOT))
    with tempfile.TemporaryDirectory() as name:
        prepare(Path(name))
        for label, words in COMMANDS.items():
            seconds = min(command_seconds(words, Path(name)) for _ in range(REPEATS))
            print(f"| {label} | {seconds:.2f} |", flush=True)
    print(f"| 1,000 responses scored by gsm8k | {min(scorer_seconds() for _ in range(REPEATS)):.3f} |")


if __name__ == "__main__":
    main()
