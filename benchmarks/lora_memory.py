"""Peak memory and time of a GRPO step with LoRA, for random models of the sizes of Qwen2.5-0.5B and 1.5B.

    .venv/bin/python benchmarks/lora_memory.py [--size 1.5B] [--tree FOLDER] [--merged] [--microbatch "16384 tokens"]

494M or 1,544M parameters in bfloat16, rank 16 on all linear layers, 4 tasks x 8 responses of 64 tokens, prompts of
about 60 tokens, two steps on the CPU with one thread; the micro-batch is the default. The peak is the resident memory
(VmHWM) of the run's process. `--tree` runs the code of another working tree.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from peak_memory import make_model, measure_run

STEPS = 2
SIZES = {
    "0.5B": {"hidden": 896, "layers": 24, "intermediate_size": 4864},
    "1.5B": {
        "hidden": 1536,
        "layers": 28,
        "intermediate_size": 8960,
        "num_attention_heads": 12,
        "head_dim": 128,
    },
}
"""Qwen2.5's sizes; the head is the embedding."""
VOCABULARY, KEY_HEADS = 151_936, 2


def write_run(folder: Path, engine: dict[str, object], trainer: dict[str, object]) -> None:
    """Write the run file and its data; `engine` is `rollout.engine`, `trainer` entries of that section."""
    rows = [json.dumps({"prompt": f"{n}: " + "one and one is two; " * 6, "answer": "2"}) for n in range(8)]
    (folder / "data.jsonl").write_text("\n".join(rows) + "\n")
    (folder / "rewards.py").write_text(
        "import random\n\ndef reward(completions, **_):\n    return [random.random() for _ in completions]\n"
    )
    run = {
        "name": "memory",
        "output": str(folder / "runs"),
        "model": {
            "path": str(folder / "model"),
            "dtype": "float32",
            "compute_dtype": "bfloat16",
            "lora": {"rank": 16},
        },
        "data": {
            "train": {"path": str(folder / "data.jsonl")},
            "max_prompt_tokens": 128,
            "max_response_tokens": 64,
        },
        "rollout": {"sampling": {"ignore_eos": True}, "engine": engine},
        "reward": f"{folder / 'rewards.py'}:reward",
        "algorithm": {"type": "grpo", "rollouts_per_task": 8},
        "trainer": {"duration": f"{STEPS} steps", "tasks_per_step": 4, **trainer},
        "checkpoint": {"every": "never"},
        "record": {"monitors": [], "report": False},
    }
    (folder / "run.yaml").write_text(json.dumps(run))


def main() -> None:
    """Run the command line, and print a row of the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tree", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--merged", action="store_true", help="sample from merged weights")
    parser.add_argument("--size", choices=SIZES, default="0.5B")
    parser.add_argument("--microbatch", help="trainer.microbatch, in place of the default")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_model(folder / "model", vocabulary=VOCABULARY, num_key_value_heads=KEY_HEADS, **SIZES[args.size])
        write_run(
            folder,
            {"type": "native", "merge_lora": args.merged},
            {"microbatch": args.microbatch} if args.microbatch else {},
        )
        found = measure_run(folder, args.tree, STEPS)
    seconds = [found.last_step[f"time/{name}_seconds"] for name in ("sample", "update", "publish")]
    print("| peak MB after the last step | peak MB with the export | sample s | update s | publish s |")
    print("| --- | --- | --- | --- | --- |")
    print(
        f"| {found.trained:,.0f} | {found.end:,.0f} | " + " | ".join(f"{each:.1f}" for each in seconds) + " |"
    )


if __name__ == "__main__":
    main()
