"""Measurements of Strop on a GPU, as tables: correctness first, then speed and memory.

    .venv/bin/python scripts/gpu_evidence.py                       # all parts
    .venv/bin/python scripts/gpu_evidence.py kernels update        # some of them
    .venv/bin/python scripts/gpu_evidence.py --device cpu --small  # that the script itself works

| part | measures |
| --- | --- |
| suites | tests of models and training, with torch's own choice of devices |
| kernels | attention of each kernel, forward and gradient, against blocks of scores in float32; milliseconds |
| update | forward and backward of a packed micro-batch: no wait for the device, FLOP utilization, peak memory |
| step | phases of a GRPO step, sampled tokens per second, log-prob gap: native, and vLLM where it is installed |
| peers | a GRPO step of Strop, TRL and verl, where these are installed, on the same model, prompts and lengths |
| memory | peak of a run in one process against the plan |
| learning | reward by step of `--model` on `--data`, such as Qwen2.5-0.5B-Instruct on GSM8K; left out without them |

Models are random unless `--model` names a folder. Each part runs in a process of its own, so that one that fails does
not hide the others; the exit code is 1 then.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import torch
from gpu_parts.kernels import run_kernels
from gpu_parts.learning import run_learning
from gpu_parts.memory import run_memory
from gpu_parts.options import Options
from gpu_parts.peers import run_peers
from gpu_parts.step import run_step
from gpu_parts.suites import run_suites
from gpu_parts.update import run_update

RUNNERS = {
    "suites": run_suites,
    "kernels": run_kernels,
    "update": run_update,
    "step": run_step,
    "peers": run_peers,
    "memory": run_memory,
    "learning": run_learning,
}


def main() -> None:
    """Run the parts, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("parts", nargs="*", metavar="part", help=f"{', '.join(RUNNERS)}; all without any")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true", help="sizes for a CPU")
    parser.add_argument("--model", type=Path, help="folder of a real model")
    parser.add_argument("--data", type=Path, help="JSON Lines file with the columns question and answer")
    parser.add_argument("--in-this-process", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if unknown := [part for part in args.parts if part not in RUNNERS]:
        parser.error(f"unknown part {unknown[0]!r}; the parts are {', '.join(RUNNERS)}")
    options = Options(torch.device(args.device), args.small, args.model, args.data)
    if args.in_this_process:
        RUNNERS[args.parts[0]](options)
        return
    if args.device == "cuda" and not torch.cuda.is_available():
        sys.exit("torch finds no GPU on this machine; --device cpu --small tries the script itself.")
    where = torch.cuda.get_device_name() if args.device == "cuda" else "the CPU"
    print(f"torch {torch.__version__} on {where}", flush=True)
    failed = []
    for part in args.parts or RUNNERS:
        arguments = [each for each in sys.argv[1:] if each not in RUNNERS]
        command = [sys.executable, __file__, part, *arguments, "--in-this-process"]
        if subprocess.run(command, check=False).returncode:
            failed.append(part)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
