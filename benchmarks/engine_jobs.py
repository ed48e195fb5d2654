"""Commands of benchmarks/engine_learning.py: one job of each kind that Strop trains, on the quickstart's sums.

Every job samples steps of 32 x 16 responses for one update from the warm-started model in `folder`, and evaluates the
same 256 held-out sums. The YAML of Trinity-RFT is written into the folder.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
RUN_FILE = ROOT / "examples" / "quickstart" / "run.yaml"
AGENT = f"{ROOT / 'benchmarks' / 'engine_agent.py'}:answer"
LEARNING_RATES = {"full": 2e-4, "lora": 2e-3}
LORA_RANK = 8
TASKS, ROLLOUTS = 32, 16
JOBS: dict[str, tuple[str, ...]] = {
    "sums": (),
    "agent": (
        f"+rollout.workflow={{name: agent, args: {{function: '{AGENT}'}}}}",
        "~reward",
        "+rollout.endpoint={model: policy}",
        "+rollout.max_sequence_tokens=64",
    ),
    "ray": ("+synchronizer.type=collective",),
    "ray-tp2": ("+synchronizer.type=collective",),
    "trinity": (),
}
"""Overrides of the quickstart's run file by job; `trinity` has a file of its own, and no overrides."""


@dataclass(frozen=True)
class Job:
    """One run of a job."""

    job: str
    """Name in JOBS."""
    engine: str
    """`native`, `vllm` or `sglang`."""
    weights: str
    """`full` or `lora`."""
    seed: int
    steps: int
    folder: Path
    """Folder of the data and the model, in which the runs have folders of their own."""
    cluster: str
    """Address of the Ray cluster of the jobs on Ray; empty for the other jobs."""

    @property
    def name(self) -> str:
        """Name of the run and of its result."""
        prefix = "" if self.job == "sums" else f"{self.job}-"
        return f"{prefix}{self.engine}-{self.weights}-{self.seed}"

    @property
    def run_folder(self) -> Path:
        """Folder of the run."""
        return self.folder / "runs" / self.name

    @property
    def metrics(self) -> tuple[Path, ...]:
        """Metrics files of the run: the trainer's, and a separate explorer's."""
        files = (self.run_folder / "metrics.jsonl", self.run_folder / "explorer" / "metrics.jsonl")
        return tuple(file for file in files if file.exists())

    def command(self) -> list[str]:
        """Return the command that runs the job."""
        if self.job == "trinity":
            return [sys.executable, "-m", "strop", "trinity", str(self._trinity_file())]
        return [sys.executable, "-m", "strop", "train", str(RUN_FILE), *self._overrides()]

    def _overrides(self) -> Sequence[str]:
        rate = LEARNING_RATES[self.weights]
        adapter = [f"+model.lora.rank={LORA_RANK}"] if self.weights == "lora" else []
        cluster = [f"+cluster={{type: ray, address: '{self.cluster}'}}"] if self.cluster else []
        return [
            f"seed={self.seed}",
            f"output={self.folder}",
            "project=runs",
            f"name={self.name}",
            "resume=never",
            f"trainer.duration={self.steps} steps",
            f"evaluate.every={max(1, self.steps // 2)} steps",
            f"trainer.tasks_per_step={TASKS}",
            f"trainer.tasks_per_update={TASKS}",
            "trainer.schedule=constant",
            f"trainer.optimizer.lr={rate}",
            "+evaluate.at_start=true",
            "+record.report=false",
            "+record.monitors=[console]",
            f"+rollout.engine={self._engine()}",
            *adapter,
            *cluster,
            *JOBS[self.job],
        ]

    def _engine(self) -> str:
        if self.engine == "native":
            return "{type: native}"
        parallel = ", tensor_parallel: 2" if self.job == "ray-tp2" else ""
        if self.engine == "vllm":
            return f"{{type: vllm, enforce_eager: true{parallel}}}"
        return f"{{type: sglang, merge_lora: true{parallel}}}"

    def _trinity_file(self) -> Path:
        """Write the configuration of Trinity-RFT; returns its file."""
        model: dict[str, Any] = {
            "model_path": str(self.folder / "warm-start"),
            "max_prompt_tokens": 16,
            "max_response_tokens": 6,
        }
        if self.weights == "lora":
            model["lora_configs"] = [{"lora_rank": LORA_RANK, "lora_alpha": LORA_RANK * 2}]
        explorer: dict[str, Any] = {"eval_interval": max(1, self.steps // 2)}
        if self.engine == "vllm":
            explorer["rollout_model"] = {"engine_type": "vllm_async", "tensor_parallel_size": 1}
        columns = {"prompt_key": "prompt", "response_key": "answer"}
        files = {"train": self._shuffled_tasks(), "test": self.folder / "test.jsonl"}
        tasks = {
            name: {"storage_type": "file", "path": str(file), "format": columns}
            for name, file in files.items()
        }
        values = {
            "project": "runs",
            "name": self.name,
            "mode": "both",
            "checkpoint_root_dir": str(self.folder),
            "continue_from_checkpoint": False,
            "algorithm": {
                "algorithm_type": "grpo",
                "repeat_times": ROLLOUTS,
                "kl_loss_fn": "none",
                "optimizer": {"lr": LEARNING_RATES[self.weights]},
            },
            "model": model,
            "cluster": {"node_num": 1, "gpu_per_node": 0},
            "buffer": {
                "batch_size": TASKS,
                "total_steps": self.steps,
                "explorer_input": {
                    "taskset": {"name": "sums", **tasks["train"]},
                    "eval_tasksets": [
                        {"name": "held-out", **tasks["test"], "rollout_args": {"temperature": 0.0}}
                    ],
                },
                "default_workflow_type": "simple_workflow",
                "default_reward_fn_type": "exact",
            },
            "explorer": explorer,
            "synchronizer": {"sync_method": "nccl", "sync_interval": 1, "sync_timeout": 1200},
            "monitor": {"monitor_type": "tensorboard"},
            "trainer": {"trainer_type": "verl", "save_interval": 100},
        }
        file = self.folder / f"{self.name}.yaml"
        file.write_text(yaml.safe_dump(values, sort_keys=False))
        return file

    def _shuffled_tasks(self) -> Path:
        """Write the tasks in an order of the seed, for which Trinity-RFT has no key; returns their file."""
        rows = (self.folder / "train.jsonl").read_text().splitlines(keepends=True)
        random.Random(self.seed).shuffle(rows)
        file = self.folder / f"train-{self.seed}.jsonl"
        file.write_text("".join(rows))
        return file
