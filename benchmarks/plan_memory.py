"""Memory that `strop plan` predicts and the memory that the run takes, for fourteen configurations on the CPU.

    .venv/bin/python benchmarks/plan_memory.py [--only NAME ...]

The quantized one needs strop[bitsandbytes].

Each configuration runs two steps of a random model in a process of its own; its peak is the resident memory (VmHWM) at
the end of the run, with the exported model.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peak_memory import make_model, measure_run

from strop.config.load.loader import load_run
from strop.plan.fit import memory_rows, needed_memory
from strop.plan.placement import machine_of

STEPS = 2
SIZES = {
    "35M": {"hidden": 512, "layers": 8, "vocabulary": 16_384, "intermediate_size": 2048},
    "60M": {"hidden": 640, "layers": 8, "vocabulary": 32_768, "intermediate_size": 1792},
    "200M": {"hidden": 1024, "layers": 12, "vocabulary": 49_152, "intermediate_size": 2816},
}
FLOAT32: dict[str, Any] = {"dtype": "float32"}
MIXED: dict[str, Any] = {"dtype": "float32", "compute_dtype": "bfloat16"}
BFLOAT16: dict[str, Any] = {"dtype": "bfloat16"}
LORA: dict[str, Any] = {"lora": {"rank": 16}}
QUANTIZED: dict[str, Any] = {"quantization": {"type": "nf4"}}
CHECKPOINTING: dict[str, Any] = {"gradient_checkpointing": True}
SELECTIVE: dict[str, Any] = {"gradient_checkpointing": "selective"}


@dataclass(frozen=True, slots=True)
class Configuration:
    """One row of the table."""

    name: str
    algorithm: str
    size: str
    model: dict[str, Any]
    microbatch: str = "2048 tokens"
    optimizer: str = "adamw"

    @property
    def tasks_per_step(self) -> int:
        """Enough to fill the micro-batch."""
        if self.algorithm == "grpo":
            return 4
        return 16 if self.microbatch == "4096 tokens" else 8


CONFIGURATIONS = (
    Configuration("sft-small", "sft", "35M", FLOAT32),
    Configuration("sft-float32", "sft", "60M", FLOAT32),
    Configuration("sft-large-microbatch", "sft", "60M", FLOAT32, "4096 tokens"),
    Configuration("sft-checkpointing", "sft", "60M", FLOAT32 | CHECKPOINTING, "4096 tokens"),
    Configuration("sft-selective", "sft", "60M", FLOAT32 | SELECTIVE, "4096 tokens"),
    Configuration("sft-mixed", "sft", "60M", MIXED),
    Configuration("sft-lora", "sft", "200M", MIXED | LORA),
    Configuration("sft-lora-nf4", "sft", "200M", MIXED | LORA | QUANTIZED),
    Configuration("sft-bfloat16-sgd", "sft", "200M", BFLOAT16, "1024 tokens", "sgd"),
    Configuration("grpo-small", "grpo", "35M", FLOAT32),
    Configuration("grpo-float32", "grpo", "60M", FLOAT32),
    Configuration("grpo-mixed-checkpointing", "grpo", "60M", MIXED | CHECKPOINTING, "4096 tokens"),
    Configuration("grpo-lora", "grpo", "200M", MIXED | LORA, "1024 tokens"),
    Configuration("dpo-bfloat16", "dpo", "60M", BFLOAT16),
)


def write_run(folder: Path, configuration: Configuration) -> Path:
    """Write the run file and its data."""
    words = "one and one is two; " * 12
    rows = [
        {"prompt": f"{n}: {words}", "answer": words * 3, "chosen": words, "rejected": words[::-1]}
        for n in range(64)
    ]
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "rewards.py").write_text(
        "import random\n\ndef reward(completions, **_):\n    return [random.random() for _ in completions]\n"
    )
    data: dict[str, Any] = {"train": {"path": str(folder / "data.jsonl")}}
    if configuration.algorithm == "grpo":
        data |= {"max_prompt_tokens": 256, "max_response_tokens": 128}
    elif configuration.algorithm == "sft":
        data["train"]["response"] = "answer"
    else:
        data["train"] |= {"chosen": "chosen", "rejected": "rejected"}
    run: dict[str, Any] = {
        "name": "memory",
        "output": str(folder / "runs"),
        "model": {"path": str(folder / "model")} | configuration.model,
        "data": data,
        "algorithm": {"type": configuration.algorithm},
        "trainer": {
            "duration": f"{STEPS} steps",
            "tasks_per_step": configuration.tasks_per_step,
            "microbatch": configuration.microbatch,
            "optimizer": {"type": configuration.optimizer},
        },
        "evaluate": {"at_start": False, "every": "never"},
        "checkpoint": {"every": "never"},
        "record": {"monitors": [], "report": False},
    }
    if configuration.algorithm == "grpo":
        run["algorithm"]["rollouts_per_task"] = 8
        run |= {
            "reward": f"{folder / 'rewards.py'}:reward",
            "rollout": {"sampling": {"ignore_eos": True}, "engine": {"type": "native"}},
        }
    path = folder / "run.yaml"
    path.write_text(json.dumps(run))
    return path


def main() -> None:
    """Run the command line: print the table, a row at a time."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", nargs="*", default=[each.name for each in CONFIGURATIONS])
    parser.add_argument("--parts", action="store_true", help="print the parts of each prediction to stderr")
    args = parser.parse_args()
    print("| configuration | model | predicted MB | measured MB | predicted / measured |", flush=True)
    print("| --- | --- | --- | --- | --- |", flush=True)
    for configuration in CONFIGURATIONS:
        if configuration.name not in args.only:
            continue
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            make_model(folder / "model", **SIZES[configuration.size])
            run = load_run(write_run(folder, configuration)).run
            predicted = (needed_memory(run, machine_of(run)) or 0) / 1e6
            if args.parts:
                print(*memory_rows(run, machine_of(run)), sep="\n", file=sys.stderr)
            measured = measure_run(folder, Path(__file__).parents[1], STEPS)
        print(
            f"| {configuration.name} | {configuration.size} | {predicted:,.0f} | {measured.end:,.0f} | "
            f"{predicted / measured.end:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
