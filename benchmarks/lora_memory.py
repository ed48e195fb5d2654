"""Peak memory and time of a GRPO step with LoRA, for a random model of the size of Qwen2.5-0.5B.

    .venv/bin/python benchmarks/lora_memory.py [--tree FOLDER] [--merged] [--layers 24]

494M parameters in bfloat16, rank 16 on all linear layers, 4 tasks x 8 responses of 64 tokens, prompts of about 60
tokens, two steps on the CPU with one thread; the micro-batch is the default. The peak is the resident memory (VmHWM) of
the run's process. `--tree` runs the code of another working tree.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STEPS = 2
HIDDEN, HEADS, KV_HEADS, INTERMEDIATE, VOCABULARY = 896, 14, 2, 4864, 151936


def make_model(folder: Path, layers: int) -> None:
    """Write the model; its head is the embedding, as in Qwen2.5-0.5B."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from strop.models.tiny import decoder_values, make_tokenizer

    folder.mkdir()
    size = make_tokenizer(folder, ["one and one is two"], 300)
    values = decoder_values(size, HIDDEN, layers, HEADS, KV_HEADS, 2048)
    values |= {"vocab_size": VOCABULARY, "intermediate_size": INTERMEDIATE, "tie_word_embeddings": True}
    config = AutoConfig.for_model("qwen2", **values)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)


def write_run(folder: Path, engine: dict[str, object]) -> None:
    """Write the run file and its data; `engine` is `rollout.engine`."""
    rows = [json.dumps({"prompt": f"{n}: " + "one and one is two; " * 6, "answer": "2"}) for n in range(8)]
    (folder / "data.jsonl").write_text("\n".join(rows) + "\n")
    (folder / "rewards.py").write_text(
        "def reward(completions, **_):\n    return [float(len(text) % 7) for text in completions]\n"
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
        "trainer": {"duration": f"{STEPS} steps", "tasks_per_step": 4},
        "checkpoint": {"every": "never"},
        "record": {"monitors": [], "report": False},
    }
    (folder / "run.yaml").write_text(json.dumps(run))


def peak_mb(pid: int) -> float:
    """Peak resident memory of a running process; 0 once it has ended."""
    try:
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0.0
    return int(found.group(1)) / 1000 if found else 0.0


def measure(folder: Path, tree: Path) -> dict[str, float]:
    """Run it; returns the peaks at the end of the last step and of the run, and the last step's seconds."""
    env = {**os.environ, "PYTHONPATH": str(tree.resolve()), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, "-m", "strop", "train", "run.yaml"], cwd=folder, env=env)
    metrics = next(iter(folder.glob("runs/*/memory/metrics.jsonl")), None)
    peak = trained = 0.0
    while process.poll() is None:
        peak = max(peak, peak_mb(process.pid))
        metrics = metrics or next(iter(folder.glob("runs/*/memory/metrics.jsonl")), None)
        if not trained and metrics and f'"step": {STEPS}' in metrics.read_text():
            trained = peak
        time.sleep(0.05)
    if process.returncode or metrics is None:
        sys.exit(f"the run ended with exit code {process.returncode}")
    last = json.loads(metrics.read_text().splitlines()[-1])
    seconds = {name: last[f"time/{name}_seconds"] for name in ("sample", "update", "publish")}
    return {"trained": trained, "end": peak, **seconds}


def main() -> None:
    """Run the command line, and print a row of the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tree", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--merged", action="store_true", help="sample from merged weights")
    parser.add_argument("--layers", type=int, default=24)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_model(folder / "model", args.layers)
        write_run(folder, {"type": "native"} | ({} if args.merged else {"merge_lora": False}))
        found = measure(folder, args.tree)
    print("| peak MB after the last step | peak MB with the export | sample s | update s | publish s |")
    print("| --- | --- | --- | --- | --- |")
    print(
        f"| {found['trained']:,.0f} | {found['end']:,.0f} | {found['sample']:.1f} | {found['update']:.1f} | "
        f"{found['publish']:.1f} |"
    )


if __name__ == "__main__":
    main()
