"""Training on several ranks gives the results of one process on every layout, and each rank holds only its shard.

CI runs each layout with some kinds of training; the nightly run has every kind on every layout, and every pair of
layouts that write and read a checkpoint. With `STROP_GAPS` the gaps of each are appended to that file as JSON lines.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoTokenizer

from strop.errors import CheckpointError, TrainingError
from strop.models.tiny import make_model
from strop.protocols import TrainingEngine
from strop.training.backend import TrainingBackend
from strop.training.engine import local_policy
from strop.training.ranks.rank import Rank
from tests.run.zero_advantages import update_on_groups
from tests.training.backends import (
    FAMILY_JOBS,
    JOBS,
    LAYOUTS,
    LORA,
    MIXED,
    WHOLE_VOCABULARY,
    Job,
    PolicyTrainee,
    Values,
    alone,
    assert_divided,
    folder_of,
    gap,
    make_runs,
    on_ranks,
    ranks_of,
)
from tests.training.conftest import RankPool

pytestmark = pytest.mark.slow
TORCH_LINEAR = functional.linear
"""The function that ZeRO-3 replaces while its ranks run."""
ALONE = "one process"
IN_CI: Mapping[str, Sequence[str]] = {
    "2 workers": (
        "full KL",
        "LoRA",
        "SFT",
        "DPO",
        "critic",
        "bfloat16",
        "teacher",
        "reward model, LoRA",
        "labels of steps, LoRA",
        "images in tiles",
        "recomputed",
    ),
    "3 workers": ("KL",),
    "2 shards": (
        "full KL",
        "SFT",
        "KTO",
        "RMSprop",
        "teacher, sampled",
        "bfloat16",
        "gemma2",
        "images in tiles",
        "reward model, LoRA",
        "labels of steps",
    ),
    "2 shards kept": ("KL", "images in a grid", "lfm2, LoRA", "mixtral, LoRA", "mamba"),
    "2 shards offloaded": ("LoRA, full KL", "Adagrad"),
    "2 replicas": ("recomputed", "critic", "gradient", "BCO", "reward model"),
    "sp 2": (
        "reward model, LoRA",
        "full KL",
        "GSPO",
        "LoRA",
        "SFT",
        "DPO",
        "critic",
        "teacher",
        "images, adapter in the tower",
    ),
    "tp 2": ("LoRA", "critic", "SFT", "qwen3, full KL", WHOLE_VOCABULARY),
    "ZeRO-1": ("SGD with momentum",),
    "ZeRO-2": ("bfloat16, LoRA",),
    "ZeRO-2 offloaded": ("KL",),
    "ZeRO-3": ("critic, LoRA",),
    "ZeRO-3 offloaded": ("LoRA, full KL",),
    "ZeRO-3, sp 2": ("DPO",),
    "2 x 2": ("full KL",),
    "sp 2 x 2": ("recomputed selectively, LoRA",),
    "tp 2, sp 2": ("KL",),
}
"""Kinds of training of each layout in CI."""
PLAIN_LAYOUTS = ("2 workers", "2 shards", "2 shards kept", "sp 2", "tp 2")
"""Layouts that train the other families; those with images not on "tp 2"."""
CONVERTED_IN_CI = (
    (ALONE, "2 workers"),
    ("2 workers", "2 shards"),
    ("ZeRO-1", "2 workers"),
    (ALONE, "2 shards offloaded"),
    (ALONE, "ZeRO-3 offloaded"),
    ("2 shards", "ZeRO-3"),
    ("ZeRO-3 offloaded", "sp 2"),
    ("ZeRO-2", "ZeRO-3, sp 2"),
    ("tp 2", "ZeRO-1"),
    ("2 replicas", "tp 2"),
)
"""Layouts of as many ranks, by which a checkpoint is written and read."""


def marked(ranks: int, layouts: Sequence[str], *values: str, in_ci: bool = True) -> Any:
    """A case for a number of ranks, which is skipped without the library of its layouts."""
    needs_library = any("ZeRO" in name for name in layouts)
    marks: list[Any] = [pytest.mark.xdist_group(f"{ranks} ranks{' of DeepSpeed' * needs_library}")]
    if needs_library:
        marks.append(pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed is not installed"))
    if not in_ci:
        marks.append(pytest.mark.nightly)
    return pytest.param(*values, marks=marks, id=" | ".join(values))


def trainings() -> Iterator[Any]:
    """Each layout with each kind of training."""
    wanted = {(layout, name) for layout, names in IN_CI.items() for name in names}
    for layout in LAYOUTS:
        families = FAMILY_JOBS if layout in PLAIN_LAYOUTS else {}
        for name in (*JOBS, *(name for name, job in families.items() if fits(job, layout))):
            yield marked(ranks_of(layout), [layout], layout, name, in_ci=(layout, name) in wanted)
            wanted.discard((layout, name))
    assert not wanted, wanted


def fits(job: Job, layout: str) -> bool:
    """Whether a family can be divided in this way."""
    if layout.startswith(("2 shards", "2 workers")):
        return True
    if layout == "tp 2":
        return job.family in ("qwen3", "gemma2", "phi3", "cohere", WHOLE_VOCABULARY)
    return job.has_images or job.family in ("qwen3", "gemma2", "phi3", "cohere", "mixtral")


def conversions() -> Iterator[Any]:
    """Each layout's checkpoint for each other layout of as many ranks."""
    for count in (2, 4):
        names = [ALONE, *(name for name in LAYOUTS if ranks_of(name) == count)]
        for pair in permutations(names, 2):
            if pair[1] != ALONE:  # the other test resumes each layout in one process
                yield marked(count, pair, *pair, in_ci=count == 2 and pair in CONVERTED_IN_CI)


Expected = tuple[list[dict[str, float]], dict[str, Any], dict[str, Any]]


@pytest.fixture(scope="module")
def expected_of() -> Callable[[str, Any, Job], Expected]:
    """A function that computes a job in one process, once: its updates, its weights and what it computes then."""
    found: dict[str, Expected] = {}

    def compute(name: str, run: Any, job: Job) -> Expected:
        if name not in found:
            trainee = alone(run, job)
            found[name] = (trainee.learn(range(2)), trainee.weights(), trainee.outputs())
        return found[name]

    return compute


@pytest.mark.parametrize(("layout", "name"), list(trainings()))
def test_ranks_learn_what_one_process_learns(
    ranks: RankPool, folder: Path, teacher: Path, tmp_path: Path, expected_of: Any, layout: str, name: str
) -> None:
    """Metrics, norms of gradients, weights, log-probs; then a checkpoint that the same ranks resume exactly, and one
    process up to rounding."""
    job = (JOBS | FAMILY_JOBS)[name]
    run, single = make_runs(folder_of(job, folder, tmp_path), teacher, job, LAYOUTS[layout])
    updates, weights, outputs = expected_of(name, single, job)
    group = ranks(ranks_of(layout))
    ranked = on_ranks(group, run, job)
    gaps = {
        "updates": gap(ranked.learn(range(2)), updates),
        "weights": gap(ranked.weights(), _same_types(weights, ranked.weights())),
        "outputs": gap(ranked.outputs(), outputs),
    }
    if name != WHOLE_VOCABULARY:
        assert_divided(group, ranked.model, run)
    assert ranked.engine.supports_shared_prompts or not job.has_images

    saved = tmp_path / "saved"
    saved.mkdir()
    ranked.engine.snapshot().begin_write(saved)()
    assert not any(path.suffix in (".pt", ".bin", ".pkl") for path in saved.rglob("*"))
    resumed = ranked.learn(range(2, 3)), ranked.weights()
    ranked.engine.load(saved)
    assert (ranked.learn(range(2, 3)), gap(ranked.weights(), resumed[1])) == (resumed[0], 0)
    again = alone(single, job)
    again.engine.load(saved)
    gaps["resume"] = gap(again.learn(range(2, 3)), resumed[0])
    record(layout, name, gaps)
    tolerances = {"weights": job.weight_tolerance or job.tolerance}
    assert not {key: value for key, value in gaps.items() if not value <= tolerances.get(key, job.tolerance)}


@pytest.mark.parametrize(("writer", "reader"), list(conversions()))
def test_a_checkpoint_resumes_on_another_layout(
    ranks: RankPool, folder: Path, teacher: Path, tmp_path: Path, writer: str, reader: str
) -> None:
    job = JOBS["KL"]
    run, single = make_runs(folder, teacher, job, LAYOUTS[reader])
    expected = alone(single, job).learn(range(4))
    if writer == ALONE:
        first = alone(single, job)
    else:
        written, _ = make_runs(folder, teacher, job, LAYOUTS[writer])
        first = on_ranks(ranks(ranks_of(writer)), written, job)
    found = first.learn(range(2))
    first.engine.snapshot().begin_write(tmp_path)()
    weights = first.weights()
    group = ranks(ranks_of(reader))
    second = on_ranks(group, run, job)
    second.engine.load(tmp_path)
    assert_divided(group, second.model, run)
    assert gap(second.weights(), weights) == 0
    found += second.learn(range(2, 4))
    record(f"{writer} -> {reader}", "KL", {"resume": gap(found, expected)})
    assert gap(found, expected) <= job.tolerance


def _same_types(weights: Mapping[str, Any], like: Mapping[str, Any]) -> dict[str, Any]:
    """DeepSpeed publishes weights in the compute dtype."""
    return {name: weight.to(like[name].dtype) for name, weight in weights.items()}


def record(layout: str, job: str, gaps: Mapping[str, float]) -> None:
    """Append the gaps to the file of `STROP_GAPS`, if set."""
    if path := os.environ.get("STROP_GAPS"):
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"layout": layout, "job": job, **gaps}) + "\n")


def on_layouts(*layouts: str) -> Any:
    """The parameter `layout`."""
    return pytest.mark.parametrize(
        "layout", [marked(ranks_of(layout), [layout], layout) for layout in layouts]
    )


@on_layouts("2 shards", "2 workers")
def test_ranks_skip_zero_advantages_as_one_process_computes_them(
    ranks: RankPool, folder: Path, teacher: Path, layout: str
) -> None:
    """Most updates have fewer micro-batches than ranks, and some only a sequence without a gradient."""
    job = JOBS["gradient"]
    run, single = make_runs(folder, teacher, Job(), LAYOUTS[layout])
    full, ranked = local_policy(single), on_ranks(ranks(2), run, Job()).engine
    expected = update_on_groups(full, single, skip=False)
    found = update_on_groups(ranked, run, skip=True)
    assert found["skipped_sequences"] > 0
    assert gap(found["grad_norm"], expected["grad_norm"]) <= job.tolerance
    assert gap(dict(ranked.iter_weights()), dict(full.iter_weights())) <= job.tolerance


@on_layouts("2 shards", "ZeRO-3 offloaded", "2 workers")
def test_an_export_is_the_model(
    ranks: RankPool, folder: Path, teacher: Path, tmp_path: Path, layout: str
) -> None:
    job = JOBS["LoRA"]
    run, _ = make_runs(folder, teacher, job, LAYOUTS[layout])
    ranked = on_ranks(ranks(2), run, job)
    ranked.learn(range(2))
    export(ranked.engine, tmp_path / "out", folder)
    held = dict(AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32).state_dict())
    weights = ranked.weights()
    assert gap({name: held[name] for name in weights}, weights) <= job.tolerance
    assert (tmp_path / "out" / "adapter" / "adapter_model.safetensors").is_file()


def export(engine: TrainingEngine, to: Path, folder: Path) -> dict[str, bytes]:
    """The files of an exported model, by name."""
    engine.export(to, AutoTokenizer.from_pretrained(folder).save_pretrained)
    return {path.name: path.read_bytes() for path in to.rglob("*") if path.is_file()}


@pytest.mark.parametrize("model", [{}, LORA, LORA | MIXED], ids=["full", "LoRA", "LoRA in bfloat16"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@on_layouts("2 shards")
def test_a_model_read_by_shards_is_the_model_read_whole(
    ranks: RankPool, teacher: Path, tmp_path: Path, layout: str, tied: bool, model: Values
) -> None:
    """Its weights, its adapter's first weights, its buffers and its configuration."""
    path = make_model(tmp_path / "model", ["one and one"], vocab_size=280, hidden_size=32, tied=tied)
    run, single = make_runs(path, teacher, Job(model=model), LAYOUTS[layout])
    sharded, whole = TrainingBackend(run, ranks(2), "").policy(), local_policy(single)
    assert "whole model" not in sharded.description
    assert export(sharded, tmp_path / "sharded", path) == export(whole, tmp_path / "whole", path)
    exported = load_file(tmp_path / "sharded" / "model.safetensors")
    stored = load_file(path / "model.safetensors")
    assert all(tensor.equal(stored[name]) for name, tensor in exported.items()), (
        "nothing is trained or rounded"
    )
    buffers = dict(whole.policy.master.named_buffers())
    for name, buffer in sharded.policy.master.named_buffers():
        assert torch.equal(buffer, buffers[name]), name


@on_layouts("2 shards")
def test_each_rank_resumes_its_own_dropout_state(
    ranks: RankPool, folder: Path, teacher: Path, tmp_path: Path, layout: str
) -> None:
    job = Job(model={"lora": {"rank": 4, "dropout": 0.3}})
    run, _ = make_runs(folder, teacher, job, LAYOUTS[layout])

    def start() -> PolicyTrainee:
        return PolicyTrainee(TrainingBackend(run, ranks(2), "").policy(), run, job)

    first = start()
    first.learn(range(1))
    first.engine.snapshot().begin_write(tmp_path)()
    expected = first.learn(range(1, 2))
    assert start().learn(range(1, 2)) != expected
    again = start()
    again.engine.load(tmp_path)
    assert again.learn(range(1, 2)) == expected


def fail(rank: Rank) -> None:
    """Fail with an error of the training."""
    raise TrainingError("the loss of a micro-batch is nan")


@pytest.mark.xdist_group("2 ranks, last")
def test_the_error_of_another_rank_is_raised_by_the_first(
    ranks: RankPool, folder: Path, teacher: Path
) -> None:
    """Even while the first rank is in a collective operation, which would wait for the other rank. This ends the ranks
    of the tests before, after which torch has its own functions again."""
    run, _ = make_runs(folder, teacher, Job(), LAYOUTS["2 shards"])
    group = ranks(2)
    engine = TrainingBackend(run, group, "").policy()
    with pytest.raises(TrainingError, match=r"^the loss of a micro-batch is nan$"), group.on_others(fail):
        dict(engine.policy.iter_weights())
    ranks.close()
    assert functional.linear is TORCH_LINEAR


@pytest.mark.xdist_group("4 ranks, last")
def test_a_checkpoint_of_another_model_is_refused_on_all_ranks(
    ranks: RankPool, folder: Path, teacher: Path, tmp_path: Path
) -> None:
    """Which ends the ranks."""
    whole, adapter = (make_runs(folder, teacher, JOBS[name], LAYOUTS["2 x 2"])[0] for name in ("KL", "LoRA"))
    TrainingBackend(whole, ranks(4), "").policy().snapshot().begin_write(tmp_path)()
    with pytest.raises(CheckpointError, match="another model"):
        TrainingBackend(adapter, ranks(4), "").policy().load(tmp_path)
