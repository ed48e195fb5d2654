"""Every backend and layout of ranks computes what one process computes, and divides the model.

Without `STROP_BACKENDS=all` a selection of layouts and jobs runs, which completes `test_layouts.py` and
`test_deepspeed.py`. With `STROP_GAPS` the gaps of each are appended to that file as JSON lines.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from torch import distributed

from strop.config.schema.model import ModelConfig
from strop.errors import ModelError
from strop.models.loading import load_model
from strop.models.packed_attention.forward import split_sequences
from strop.models.packed_attention.sequence_parallel import SequenceGroup
from strop.models.tiny import make_model
from strop.training.ranks.group import RankGroup
from tests.models.families import family_folder
from tests.training.backends import JOBS, LAYOUTS, alone, assert_divided, gap, make_runs, on_ranks

ALL = os.environ.get("STROP_BACKENDS") == "all"
SELECTED = [("sp 2", "DPO"), ("sp 2", "critic"), ("ZeRO-3, sp 2", "DPO")]
EVERY = [(layout, job) for layout in LAYOUTS for job in JOBS]
RESUMED = [
    ("2 shards", "ZeRO-3"),
    ("ZeRO-3 offloaded", "sp 2"),
    ("ZeRO-2", "ZeRO-3, sp 2"),
    ("tp 2", "ZeRO-1"),
]
"""Layouts of as many ranks, by which a checkpoint is written and read."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model of 4 attention heads, and a larger teacher."""
    path = tmp_path_factory.mktemp("model")
    corpus = ["one and one is two"]
    sizes = {"vocab_size": 280, "heads": 4, "kv_heads": 2}
    return (
        make_model(path / "model", corpus, hidden_size=32, **sizes),
        make_model(path / "teacher", corpus, hidden_size=64, layers=3, seed=1, **sizes),
    )


@pytest.fixture(scope="module")
def start() -> Iterator[Callable[[int], RankGroup]]:
    """Starts a number of ranks, or returns those that run if they are as many."""
    running: list[RankGroup] = []

    def started(ranks: int) -> RankGroup:
        if running and running[0].ranks != ranks:
            running.pop().close()
        if not running:
            running.append(RankGroup(ranks, "cpu"))
        return running[0]

    yield started
    for group in running:
        group.close()


def marked(layouts: Sequence[str], *values: str) -> Any:
    """A case that is skipped without the library of its layouts."""
    marks: list[Any] = [pytest.mark.slow]
    if any("ZeRO" in name for name in layouts):
        marks.append(pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed is not installed"))
    return pytest.param(*values, marks=marks, id=" | ".join(values))


@pytest.mark.parametrize(
    ("layout", "job"), [marked([layout], layout, job) for layout, job in (EVERY if ALL else SELECTED)]
)
def test_a_backend_learns_what_one_process_learns(start, folders, tmp_path, layout: str, job: str) -> None:
    """Metrics, norms of gradients, weights, log-probs; then a checkpoint that one process resumes."""
    task, section = JOBS[job], LAYOUTS[layout]
    run, single = make_runs(*folders, task, section)
    group = start(section["ranks"])
    ranked, whole = on_ranks(group, run, task), alone(single, task)
    gaps = {
        "updates": gap(ranked.learn(range(2)), whole.learn(range(2))),
        "weights": gap(ranked.weights(), _same_types(whole.weights(), ranked.weights())),
        "outputs": gap(ranked.outputs(), whole.outputs()),
    }
    assert_divided(group, ranked.model, run)
    ranked.engine.snapshot().begin_write(tmp_path)()
    assert not any(path.suffix in (".pt", ".bin", ".pkl") for path in tmp_path.rglob("*"))
    expected = ranked.learn(range(2, 3))
    again = alone(single, task)
    again.engine.load(tmp_path)
    gaps["resume"] = gap(again.learn(range(2, 3)), expected)
    record(layout, job, gaps)
    wrong = {name: value for name, value in gaps.items() if not value <= task.tolerance}
    assert not wrong


@pytest.mark.parametrize(("writer", "reader"), [marked(pair, *pair) for pair in RESUMED])
def test_a_checkpoint_resumes_on_another_backend(start, folders, tmp_path, writer: str, reader: str) -> None:
    task = JOBS["KL"]
    (run, single), (other, _) = (make_runs(*folders, task, LAYOUTS[name]) for name in (writer, reader))
    group = start(run.trainer.engine.ranks)
    expected = alone(single, task).learn(range(4))
    first = on_ranks(group, run, task)
    found = first.learn(range(2))
    first.engine.snapshot().begin_write(tmp_path)()
    second = on_ranks(group, other, task)
    second.engine.load(tmp_path)
    assert_divided(group, second.model, other)
    found += second.learn(range(2, 4))
    record(f"{writer} -> {reader}", "KL", {"resume": gap(found, expected)})
    assert gap(found, expected) <= task.tolerance


def _same_types(weights: dict[str, Any], like: dict[str, Any]) -> dict[str, Any]:
    """DeepSpeed publishes weights in the compute dtype."""
    return {name: weight.to(like[name].dtype) for name, weight in weights.items()}


def record(layout: str, job: str, gaps: dict[str, float]) -> None:
    """Append the gaps to the file of `STROP_GAPS`, if set."""
    if path := os.environ.get("STROP_GAPS"):
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"layout": layout, "job": job, **gaps}) + "\n")


@pytest.mark.parametrize(
    ("heads", "message"),
    [
        (3, "which does not divide the 3 attention heads"),
        (None, "cannot be divided over ranks: it has layers"),
    ],
)
def test_models_whose_tokens_cannot_be_divided_are_refused(tmp_path, heads, message) -> None:
    folder = tmp_path / "model"
    if heads is None:
        folder = family_folder(tmp_path, "lfm2")
    else:
        make_model(folder, ["one"], vocab_size=280, hidden_size=36, heads=heads, kv_heads=1)
    model = load_model(ModelConfig(path=str(folder)), device="cpu")
    with pytest.raises(ModelError, match=message):
        split_sequences(model, SequenceGroup(distributed.GroupMember.NON_GROUP_MEMBER, rank=0, size=2))


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ({"ranks": 4, "replicate": 3}, r"ranks \(4\) is not a multiple of replicate \(3\)"),
        ({"ranks": 4, "sequence_parallel": 3}, r"x sequence_parallel \(3\)"),
        ({"type": "deepspeed", "sequence_parallel": 3}, r"not a multiple of sequence_parallel \(3\)"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(engine, message) -> None:
    with pytest.raises(ValidationError, match=message):
        make_runs(Path("model"), Path("teacher"), JOBS["KL"], engine)
