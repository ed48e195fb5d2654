"""Part `suites`: tests of models, training and the native sampler on this device."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from gpu_parts.measuring import print_table
from gpu_parts.options import Options

_ROOT = Path(__file__).resolve().parents[2]


def run_suites(options: Options) -> None:
    """The tests of models and training that CI runs on a CPU, and those of the native sampler's CUDA graphs."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not (slow or faults or learning or evidence)"]
    tests = ["tests/models", "tests/training", "tests/inference/test_recorded_steps.py"]
    if options.small:
        tests = ["tests/models/test_gpu_kernels.py", "tests/inference/test_recorded_steps.py"]
    done = subprocess.run([*command, *tests], cwd=_ROOT, capture_output=True, text=True, check=False)
    print_table("Suites", ("tests", "result"), [(" ".join(tests), done.stdout.strip().splitlines()[-1])])
    if done.returncode:
        sys.exit(done.stdout[-4000:])
