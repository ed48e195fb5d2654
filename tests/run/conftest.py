"""A tiny model and tasks for whole runs."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from strop.models.tiny import make_model
from tests.models.vision.images import image, vision_model
from tests.run.mechanisms import MECHANISMS, MODELS
from tests.run.results import train

Values = Callable[..., dict[str, Any]]
DIGITS = [(a, b) for a in range(10) for b in range(10)]


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `model/` and `tasks.jsonl`: which of two digits is the larger?"""
    folder = tmp_path_factory.mktemp("tiny")
    make_model(folder / "model", ["max 1 2"], vocab_size=300, hidden_size=32, layers=2, heads=4, kv_heads=2)
    write_rows(
        folder / "tasks.jsonl", [{"prompt": f"max {a} {b}", "answer": str(max(a, b))} for a, b in DIGITS]
    )
    return folder


@pytest.fixture(scope="session")
def pairs(tiny: Path) -> Path:
    """The larger digit is the better answer, the smaller one the worse; `labels.jsonl` has both as rows."""
    digits = [(f"max {a} {b}", str(max(a, b)), str(min(a, b))) for a, b in DIGITS if a != b]
    names = ("prompt", "better", "worse")
    labels = [
        (prompt, answer, is_better)
        for prompt, *both in digits
        for answer, is_better in zip(both, (True, False), strict=True)
    ]
    columns = ("prompt", "completion", "label")
    write_rows(tiny / "labels.jsonl", [dict(zip(columns, row, strict=True)) for row in labels])
    return write_rows(tiny / "pairs.jsonl", [dict(zip(names, row, strict=True)) for row in digits])


@pytest.fixture(scope="session")
def teacher(tiny: Path) -> dict[str, Any]:
    """A model with the policy's tokenizer, of another size, whose larger weights make it surer of its tokens."""
    size: dict[str, Any] = {"hidden_size": 48, "layers": 1, "initializer_range": 0.2}
    make_model(tiny / "teacher", ["max 1 2"], vocab_size=300, heads=4, kv_heads=2, seed=5, **size)
    return {"path": str(tiny / "teacher"), "dtype": "float32"}


def run_values(tiny: Path, output: Path, /, **changes: Any) -> dict[str, Any]:
    """The values of a small run; dotted keyword arguments (`a__b=1`) change them."""
    run: dict[str, Any] = {
        "name": "small",
        "output": str(output),
        "model": {"path": str(tiny / "model")},
        "data": {
            "train": {"path": str(tiny / "tasks.jsonl")},
            "eval": [{"name": "held-out", "path": str(tiny / "tasks.jsonl"), "limit_tasks": 20}],
            "max_prompt_tokens": 32,
            "max_response_tokens": 8,
        },
        "reward": f"{Path(__file__).parent / 'rewards.py'}:digit_share",
        "algorithm": {"type": "grpo", "rollouts_per_task": 4},
        "trainer": {
            "duration": "4 steps",
            "tasks_per_step": 8,
            "tasks_per_update": 4,
            "optimizer": {"type": "adamw", "lr": 1e-3},
        },
        "checkpoint": {"every": "2 steps"},
        "evaluate": {"every": "2 steps"},
        "record": {"rollouts_every": "2 steps", "monitors": ["console"], "report": False},
    }
    return changed(run, **changes)


def changed(run: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Change values of a run in place, by their dotted paths."""
    for path, value in changes.items():
        *parents, last = path.split("__")
        section = run
        for parent in parents:
            section = section.setdefault(parent, {})
        section[last] = value
    return run


def answer_values(tiny: Path, output: Path, kind: str, /, **changes: Any) -> dict[str, Any]:
    """The values of a small run on the given responses of `pairs.jsonl`; for kto those of `labels.jsonl`."""
    columns = {"chosen": "better", "rejected": "worse"}
    columns = {"sft": {"response": "better"}, "kto": {"response": "completion", "label": "label"}}.get(
        kind, columns
    )
    answers = {"path": str(tiny / ("labels.jsonl" if kind == "kto" else "pairs.jsonl")), **columns}
    run = run_values(tiny, output, algorithm={"type": kind}, data__train=answers)
    run["data"]["eval"] = [{"name": "held-out", "limit_tasks": 20, **answers}]
    del run["reward"], run["record"]["rollouts_every"]
    return changed(run, **changes)


@pytest.fixture
def values(tiny: Path, tmp_path: Path) -> Values:
    """The values of a small run; dotted keyword arguments (`a__b=1`) change them."""
    return lambda **changes: run_values(tiny, tmp_path / "runs", **changes)


@pytest.fixture
def offline(tiny: Path, pairs: Path, tmp_path: Path) -> Values:
    """The values of a small run on given responses."""
    return lambda kind, **changes: answer_values(tiny, tmp_path / "runs", kind, **changes)


@pytest.fixture
def staged(values: Values) -> Values:
    """The values of a run with a stage on answers and one on rollouts."""

    def make(**changes: Any) -> dict[str, Any]:
        run = values(**changes)
        warm_up = {
            "name": "warm-up",
            "algorithm": "sft",
            "data": {"train": {"response": "answer"}},
            "record": {"rollouts_every": "never"},
        }
        return run | {"stages": [warm_up, {"name": "rl", "algorithm": run.pop("algorithm")}]}

    return make


@pytest.fixture(scope="session")
def finished(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The values of a run that has ended; tests read its folder, and leave it as it is."""
    output = tmp_path_factory.mktemp("finished")
    run = run_values(tiny, output, record__rollouts_every="1 steps", record__report=True)
    train(run)
    return run


@pytest.fixture
def copied(finished: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    """The values of the finished run, whose folder is a copy."""
    shutil.copytree(Path(finished["output"]) / "strop", tmp_path / "copied" / "strop")
    return copy.deepcopy(finished) | {"output": str(tmp_path / "copied")}


@pytest.fixture(scope="session")
def files(tiny: Path, pairs: Path, teacher: dict[str, Any]) -> Path:
    """The folder that the paths of the mechanisms are relative to."""
    tasks = [json.loads(line) for line in (tiny / "tasks.jsonl").read_text().splitlines()]
    rated = [task | {"weak": 0.1, "strong": 0.2 + i % 8 / 10} for i, task in enumerate(tasks)]
    write_rows(tiny / "rated.jsonl", rated)
    smaller = [(a, b) for a in range(4) for b in range(4)]
    write_rows(
        tiny / "minimum.jsonl", [{"question": f"min {a} {b}", "smaller": str(min(a, b))} for a, b in smaller]
    )
    numbers = [(a, b) for a in range(6) for b in range(6)]
    steps = [
        {"prompt": f"max {a} {b}", "steps": [f"it is {a}", f"it is {b}"], "labels": [a > 2, b > 2]}
        for a, b in numbers
    ]
    write_rows(tiny / "steps.jsonl", steps)
    (tiny / "vision").symlink_to(vision_model("qwen2_5_vl"))
    pictures = [image(tiny, 32, 16, seed).path.read_bytes() for seed in range(16)]
    rows = [{"prompt": "<image>Read.", "images": [each], "answer": "1"} for each in pictures]
    pq.write_table(pa.Table.from_pylist(rows), tiny / "images.parquet")
    return tiny


@pytest.fixture
def in_files(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of files is the current one."""
    monkeypatch.chdir(files)


@pytest.fixture(scope="session")
def values_of(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, Any]]:
    """The values of a run of a mechanism, which starts in the folder of files."""

    def make(name: str, mechanism: str, model: str) -> dict[str, Any]:
        case, output = MECHANISMS[mechanism], tmp_path_factory.mktemp("runs")
        run = answer_values(files, output, case.kind) if case.kind else run_values(files, output)
        if not case.kind:
            run["record"]["rollouts_every"] = "1 steps"
        run["data"]["eval"][0]["limit_tasks"] = 4
        changed(run, name=name, **copy.deepcopy(case.changes | MODELS[model]))
        if mirror := run["checkpoint"].get("mirror"):
            run["checkpoint"]["mirror"] = str(output / mirror)
        return run

    return make


@pytest.fixture(scope="session")
def whole_of(values_of: Callable[..., dict[str, Any]]) -> Callable[[str, str], Path]:
    """Folder of the uninterrupted run of a mechanism, which is trained once."""
    return cache(lambda mechanism, model: train(values_of("whole", mechanism, model)).folder)
