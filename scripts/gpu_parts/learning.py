"""Part `learning`: reward by step of a real model on real data."""

from __future__ import annotations

import tempfile
from pathlib import Path

from gpu_parts.measuring import print_table
from gpu_parts.options import Options
from gpu_parts.runs import quickstart_run, run_command


def run_learning(options: Options) -> None:
    """Training reward of `--model` on `--data`, a file with the columns `question` and `answer`."""
    if options.model is None or options.data is None:
        print("\nlearning: left out, since --model and --data are not both given.")
        return
    with tempfile.TemporaryDirectory() as name:
        settings = quickstart_run(options, Path(name), "auto", steps=100)
        data = {"path": str(options.data.resolve()), "prompt": "question", "answer": "answer"}
        settings |= {"reward": "gsm8k"}
        settings["data"] |= {"train": data, "max_prompt_tokens": 512, "max_response_tokens": 512}
        settings["trainer"]["optimizer"] = {"type": "adamw", "lr": 1e-6}
        steps = run_command(Path(name), settings)
    rows = [(each["step"], f"{each['reward/mean']:.3f}") for each in steps[:: max(1, len(steps) // 20)]]
    print_table("Training reward", ("step", "reward"), rows)
