"""Part `memory`: peak memory of a run against the plan."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

import strop
from gpu_parts.measuring import print_table
from gpu_parts.options import Options
from gpu_parts.runs import absolute, quickstart_run
from strop.config.machine import this_machine
from strop.plan.fit import needed_memory
from strop.run.recording.recorder import peak_memory_mb


def run_memory(options: Options) -> None:
    """Peak memory of a run in this process, trainer and native sampler together, against the plan."""
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        settings = quickstart_run(options, folder, "native", steps=2)
        settings |= {"output": str(folder / "runs"), "data": absolute(settings["data"], folder)}
        run = strop.load(settings)
        planned = needed_memory(run.run, this_machine())
        strop.train(run)
        peak = 1e6 * peak_memory_mb()
        if options.device.type == "cuda":
            peak = float(torch.cuda.max_memory_allocated())
        shown = "unknown" if planned is None else f"{planned / 2**30:.2f}"
        rows.append((str(run.run.trainer.microbatch), shown, f"{peak / 2**30:.2f}"))
    print_table("Peak memory of a run", ("micro-batch", "planned GiB", "measured GiB"), rows)
