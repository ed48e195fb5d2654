"""Peak resident memory of a run of `strop train`, for the benchmarks in this folder."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """Peaks of one process, in MB, and the metrics of its last step."""

    trained: float
    """Peak at the end of the last step."""
    end: float
    """Peak at the end of the process, which the exported model may raise."""
    last_step: dict[str, Any]


def peak_mb(pid: int) -> float | None:
    """VmHWM of a process in MB; None once it has ended."""
    try:
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return None
    return None if found is None else int(found[1]) / 1e3


def make_model(folder: Path, *, hidden: int, layers: int, vocabulary: int, **values: Any) -> None:
    """Write a random bfloat16 model whose vocabulary is larger than its tokenizer's; its head is its embedding.

    `values` are further entries of its config.json.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from strop.models.tiny import decoder_values, make_tokenizer

    folder.mkdir()
    size = make_tokenizer(folder, ["one and one is two"], 300)
    config = decoder_values(size, hidden, layers, hidden // 64, max(hidden // 256, 1), 2048)
    config |= {"vocab_size": vocabulary, "tie_word_embeddings": True} | values
    torch.manual_seed(0)
    settings = AutoConfig.for_model("qwen2", **config)
    model = AutoModelForCausalLM.from_config(settings, dtype=torch.bfloat16)  # type: ignore[no-untyped-call]
    model.save_pretrained(folder)


def measure_run(folder: Path, tree: Path, steps: int, threads: int = 1) -> MeasuredRun:
    """Run `folder`/run.yaml, whose name is `memory`, with the code of `tree`. Exits if the run fails."""
    env = {**os.environ, "PYTHONPATH": str(tree.resolve()), "OMP_NUM_THREADS": str(threads)}
    log = folder / "log.txt"
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "strop", "train", "run.yaml"],
            cwd=folder,
            env=env,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    peak = trained = 0.0
    metrics: Path | None = None
    while process.poll() is None:
        peak = max(peak, peak_mb(process.pid) or 0.0)
        metrics = metrics or next(iter(folder.glob("runs/*/memory/metrics.jsonl")), None)
        if not trained and metrics and f'"step": {steps}' in metrics.read_text():
            trained = peak
        time.sleep(0.02)
    if process.returncode or metrics is None:
        sys.exit(f"{log.read_text()}\nthe run ended with exit code {process.returncode}")
    return MeasuredRun(trained or peak, peak, json.loads(metrics.read_text().splitlines()[-1]))
