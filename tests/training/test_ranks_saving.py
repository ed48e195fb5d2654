"""Checkpoints of several ranks: written in parts, in turns or at once, and beside training."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from strop.models.tiny import make_model
from strop.training.learner import WEIGHTS
from strop.training.optim_state import NUMBERS, TENSORS
from strop.training.parts import StoredTensors, part_name
from strop.training.ranks.engines import RankedEngine, RankedValueEngine
from strop.training.ranks.group import RankGroup
from strop.training.single import SingleEngine
from tests.training.test_ranks import LORA, close, learn, the_run, weights
from tests.training.test_single import make_run

FIRST, SECOND = (part_name(WEIGHTS, rank, 2) for rank in range(2))
OWN = {FIRST, part_name(TENSORS, 0, 2), "rng.safetensors"}
THEIRS = {SECOND, part_name(TENSORS, 1, 2), "rank-1-rng.safetensors"}


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model"
    return make_model(path, ["one and one is two"], vocab_size=280, hidden_size=32)


@pytest.fixture(scope="module")
def pair() -> Iterator[RankGroup]:
    with closing(RankGroup(2, "cpu")) as group:
        yield group


def with_optimizer(folder: Path, writers: str, **optimizer: object):
    trainer = {"optimizer": {"type": "adamw", **optimizer}, "engine": {"type": "fsdp2", "device": "cpu"}}
    return make_run(folder, {}, trainer=trainer, checkpoint={"writers": writers})


@pytest.mark.parametrize("model", ({}, LORA), ids=("full", "lora"))
def test_each_rank_writes_its_own_rows_and_together_they_are_the_whole(pair, model_folder, model, tmp_path):
    run = the_run(model_folder, model)
    ranked = RankedEngine(pair, run)
    learn(ranked, run, range(2))
    written = ranked.snapshot().begin(tmp_path)()
    assert set(written) == {path.name for path in tmp_path.iterdir()} == {NUMBERS, *OWN, *THEIRS}
    for file in (WEIGHTS, TENSORS):
        stored, sizes = StoredTensors(tmp_path, file), []
        for rank in range(2):
            with safe_open(tmp_path / part_name(file, rank, 2), "pt") as part:
                rows = {name: part.get_tensor(name) for name in part.keys()}  # noqa: SIM118
            sizes.append(sum(tensor.numel() for tensor in rows.values()))
        assert sum(sizes) == sum(stored.shapes[name].numel() for name in stored.shapes)
        assert 0.4 < sizes[1] / sum(sizes) < 0.6
    alone = SingleEngine(run)
    alone.load(tmp_path)
    held = dict(alone.master.named_parameters())
    stored = StoredTensors(tmp_path, WEIGHTS)
    assert all(torch.equal(stored.read(name), held[name]) for name in stored.shapes)


def test_what_one_process_saved_whole_goes_on_with_two_ranks(pair, model_folder, tmp_path):
    run = the_run(model_folder)
    alone = SingleEngine(run)
    learn(alone, run, range(2))
    alone.snapshot().begin(tmp_path)()
    ranked = RankedEngine(pair, run)
    ranked.load(tmp_path)
    close(weights(ranked), weights(alone), 0)
    close(learn(ranked, run, range(2, 4)), learn(alone, run, range(2, 4)))


@pytest.mark.parametrize(
    "optimizer",
    [{"type": "sgd", "momentum": 0.9}, {"type": "adagrad"}, {"type": "rmsprop", "momentum": 0.5}],
    ids=lambda optimizer: optimizer["type"],
)
def test_any_optimizer_that_ranks_allow_goes_on_exactly(pair, model_folder, optimizer, tmp_path):
    run = with_optimizer(model_folder, "process", **optimizer, lr=0.01)
    ranked = RankedEngine(pair, run)
    learn(ranked, run, range(2))
    ranked.snapshot().begin(tmp_path)()
    expected = learn(ranked, run, range(2, 4)), weights(ranked)
    again = RankedEngine(pair, run)
    again.load(tmp_path)
    assert learn(again, run, range(2, 4)) == expected[0]
    close(weights(again), expected[1], 0)


@pytest.mark.parametrize(
    ("writers", "meanwhile"),
    [("all", OWN | THEIRS), ("node", OWN | THEIRS), ("process", OWN), ("thread", set())],
)
def test_what_is_written_while_the_first_rank_is_at_one_file(
    pair, model_folder, writers, meanwhile, tmp_path
):
    """A pipe that nobody reads stands in that file's place, so its writer hangs."""
    os.mkfifo(tmp_path / NUMBERS)
    os.link(tmp_path / NUMBERS, tmp_path / "pipe")
    write = RankedEngine(pair, with_optimizer(model_folder, writers)).snapshot().begin(tmp_path)
    with ThreadPoolExecutor() as threads:
        writing = threads.submit(write)
        deadline = time.monotonic() + 30
        while not meanwhile <= others(tmp_path) and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.5)
        found = others(tmp_path)
        (tmp_path / NUMBERS).unlink()
        reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
        with pytest.raises(OSError, match=r"No such file .* rank 0"):  # it was there no more to be checked
            writing.result()
        os.close(reader)
    assert found == meanwhile


def others(folder: Path) -> set[str]:
    """The files beside that one, which are there whole."""
    return {path.name for path in folder.iterdir()} & (OWN | THEIRS)


def test_beside_training_the_state_is_that_of_the_beginning(pair, model_folder, tmp_path):
    run = the_run(model_folder)
    ranked, critic = RankedEngine(pair, run), RankedValueEngine(pair, *ppo(model_folder))
    learn(ranked, run, range(1))
    folders = [tmp_path / name for name in ("now", "later", "critic")]
    for folder in folders:
        folder.mkdir()
    ranked.snapshot().begin(folders[0])()
    begun = [
        ranked.snapshot().begin(folders[1], copied=True),
        critic.snapshot().begin(folders[2], copied=True),
    ]
    learn(ranked, run, range(1, 2))
    written = [write() for write in begun]
    assert set(written[1]) == {path.name for path in folders[2].iterdir()}
    for path in folders[0].iterdir():
        assert (folders[1] / path.name).read_bytes() == path.read_bytes(), path.name


def ppo(folder: Path):
    run = the_run(folder, algorithm="ppo")
    return run, run.algorithm.critic


def test_a_disk_that_refuses_another_ranks_part_is_said_and_the_group_goes_on(pair, model_folder, tmp_path):
    run = the_run(model_folder)
    ranked = RankedEngine(pair, run)
    (tmp_path / SECOND).mkdir()
    with pytest.raises(OSError, match=r"directory.*, says rank 1 of the trainer"):
        ranked.snapshot().begin(tmp_path)()
    assert learn(ranked, run, range(1))
