"""Digests of ten-step runs of every kind, so that a change of the code that must change nothing is compared with the
commit before.

    python tools/same_runs.py > after.txt        # and the same in a checkout of the commit before; then diff

Each line has the digest of a run's metrics (without times and memory), of its sampled responses, and of its weights.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from safetensors import safe_open

from strop.models.tiny import make_model

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"

_SHORT = ("trainer.duration=10 steps", "checkpoint.every=10 steps", "record.rollouts_every=1 steps")
_SCORED = (*_SHORT, "reward=score.py:score", "trainer.tasks_per_step=8")
_RUNS: Mapping[str, tuple[str, ...]] = {
    "grpo": ("quickstart/run.yaml", *_SCORED, "trainer.tasks_per_update=4"),
    "ppo": ("algorithms/ppo.yaml", *_SCORED, "trainer.tasks_per_update=4"),
    "lora": (
        "quickstart/run.yaml",
        *_SCORED,
        "trainer.tasks_per_update=4",
        "+model.lora={rank: 4, alpha: 8}",
    ),
    "dpo": ("algorithms/dpo.yaml", *_SHORT[:2], "trainer.tasks_per_step=16"),
    "sft": ("algorithms/sft.yaml", *_SHORT[:2], "trainer.tasks_per_step=16", "reward=score.py:score"),
    "distillation": ("algorithms/distillation.yaml", *_SCORED),
    "gspo with a KL loss": (
        "algorithms/gspo.yaml",
        *_SCORED,
        "trainer.tasks_per_update=4",
        "+algorithm.kl_loss={estimator: k3, coef: 0.01}",
    ),
    "environment": ("workflows/environment.yaml", *_SHORT, "trainer.tasks_per_step=4"),
    "images": (
        "images/colors/run.yaml",
        *_SHORT,
        "trainer.tasks_per_step=8",
        "trainer.tasks_per_update=4",
        "trainer.batch_selection.steps=3 steps",
    ),
    "two ranks": (
        "quickstart/run.yaml",
        *_SCORED,
        "trainer.tasks_per_update=4",
        "+trainer.engine={type: fsdp2, ranks: 2, device: cpu}",
    ),
    "separate explorer": ("async/ahead.yaml", *_SCORED, "trainer.tasks_per_update=4"),
}
_SCORE = "def score(completion):\n    return sum(map(ord, completion)) % 7 / 7\n"
"""A reward that is not the same for all responses of a random model."""
_CHANGING = (
    "seconds",
    "time",
    "memory",
    "per_second",
    "gb",
    "gib",
    "fraction_of_peak",
    "bytes",
    "lag",
    "idle",
)


def _prepare(folder: Path) -> None:
    sys.path.insert(0, str(EXAMPLES / "quickstart"))
    from quickstart import make_tasks  # type: ignore[import-not-found]

    make_tasks(folder)
    for name in ("warm-start", "random"):
        sizes = {"vocab_size": 300, "hidden_size": 32, "layers": 2, "heads": 4, "kv_heads": 4}
        make_model(folder / name, ["12+34=46"], **sizes, seed=len(name))
    (folder / "score.py").write_text(_SCORE, encoding="utf-8")
    for script in ("algorithms/pairs.py", "workflows/make.py", "images/colors/make.py"):
        arguments = [] if script.startswith("alg") else [str(folder)]
        subprocess.run([sys.executable, EXAMPLES / script, *arguments], check=True, env=_environment(folder))


def _environment(folder: Path) -> dict[str, str]:
    names = ("QUICKSTART", "WORKFLOWS", "IMAGES")
    own = {name: str(folder) for name in names} | {"TEACHER": str(folder / "random")}
    return os.environ | own | {"EXAMPLES": str(EXAMPLES / "workflows"), "OMP_NUM_THREADS": "1"}


def _digest(parts: Iterator[bytes]) -> str:
    found = hashlib.sha256()
    for part in parts:
        found.update(part)
    return found.hexdigest()[:16]


def _metrics(run: Path) -> Iterator[bytes]:
    for line in (run / "metrics.jsonl").open(encoding="utf-8"):
        row: dict[str, Any] = json.loads(line)
        kept = {name: value for name, value in row.items() if not any(word in name for word in _CHANGING)}
        yield json.dumps(kept, sort_keys=True).encode()


def _samples(run: Path) -> Iterator[bytes]:
    for file in sorted(run.glob("rollouts/**/*.parquet")):
        table = pq.read_table(file)
        columns = [name for name in table.column_names if not any(word in name for word in _CHANGING)]
        yield json.dumps(table.select(columns).to_pylist(), sort_keys=True, default=str).encode()


def _weights(run: Path) -> Iterator[bytes]:
    for file in sorted((run / "model").rglob("*.safetensors")):
        with safe_open(file, "pt") as tensors:
            for name in sorted(tensors.keys()):
                yield name.encode() + tensors.get_tensor(name).view(-1).float().numpy().tobytes()


def main() -> None:
    """Run all, or the runs that the arguments name."""
    wanted = sys.argv[1:] or list(_RUNS)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        _prepare(folder)
        for name in wanted:
            file, *overrides = _RUNS[name]
            run = folder / "runs" / name.replace(" ", "-")
            command = [sys.executable, "-m", "strop", "train", EXAMPLES / file, *overrides, f"+folder={run}"]
            done = subprocess.run(
                command, cwd=folder, env=_environment(folder), capture_output=True, text=True, check=False
            )
            if done.returncode:
                raise SystemExit(f"{name}: {done.stdout[-2000:]}\n{done.stderr[-2000:]}")
            digests = (_digest(each(run)) for each in (_metrics, _samples, _weights))
            print(f"{name}: metrics, samples, weights", *digests, flush=True)


if __name__ == "__main__":
    main()
