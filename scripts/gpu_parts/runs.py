"""Runs on sums in words that several parts start."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from gpu_parts.measuring import installed
from gpu_parts.options import Options
from strop.models.tiny import make_model


def engines(options: Options) -> dict[str, dict[str, Any]]:
    """Sections of the inference engines that are installed, by name."""
    sections: dict[str, dict[str, Any]] = {"native": {"type": "native"}}
    if options.device.type == "cuda":
        sections["native with CUDA graphs"] = {"type": "native", "cuda_graphs": True}
    if installed("vllm"):
        sections["vllm"] = {"type": "vllm"}
    return sections


def model_folder(options: Options, folder: Path) -> Path:
    """The model of `--model`, or a random Qwen2 of about the shape of its 0.5B."""
    if options.model is not None:
        return options.model
    sizes: dict[str, Any] = {"hidden_size": 64, "layers": 2, "vocab_size": 400}
    if not options.small:
        sizes = {"hidden_size": 896, "layers": 24, "heads": 14, "vocab_size": 600, "max_tokens": 8192}
        sizes["intermediate_size"] = 4864
    return make_model(folder / "model", ["one and one is two"], **sizes)


def quickstart_run(options: Options, folder: Path, engine: Any, steps: int) -> dict[str, Any]:
    """Settings of a run on sums in words."""
    rows = [{"question": f"What is {a} + {b}?", "answer": str(a + b)} for a in range(20) for b in range(20)]
    (folder / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {
        "name": "gpu",
        "output": "runs",
        "model": {"path": str(model_folder(options, folder)), "compute_dtype": "bfloat16"},
        "data": {
            "train": {"path": "sums.jsonl", "prompt": "question", "answer": "answer"},
            "max_prompt_tokens": 128,
            "max_response_tokens": 16 if options.small else 256,
        },
        "reward": "exact",
        "algorithm": {"type": "grpo", "rollouts_per_task": 4 if options.small else 16},
        "rollout": {"engine": engine},
        "trainer": {
            "duration": f"{steps} steps",
            "tasks_per_step": 2 if options.small else 32,
            "engine": {"type": "local", "device": options.device.type},
        },
        "record": {"monitors": [], "report": False},
    }


def run_command(folder: Path, overrides: dict[str, Any]) -> list[dict[str, Any]]:
    """The metrics of each step of a run with these settings."""
    (folder / "run.yaml").write_text(yaml.safe_dump(overrides))
    command = [sys.executable, "-m", "strop", "train", "run.yaml"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"strop train failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    (metrics,) = folder.glob("runs/**/metrics.jsonl")
    return [json.loads(line) for line in metrics.read_text().splitlines()]


def absolute(data: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The section `data` for a run in another folder."""
    return data | {"train": data["train"] | {"path": str(folder / data["train"]["path"])}}
