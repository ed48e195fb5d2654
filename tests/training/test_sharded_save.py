"""Sharded checkpoints: files per rank, write order, and asynchronous saves."""

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
from strop.training.backends.fsdp2 import Fsdp2CriticEngine, Fsdp2Engine
from strop.training.backends.local import LocalEngine
from strop.training.checkpoints.file_names import (
    OPTIMIZER_SCALARS_FILE,
    OPTIMIZER_TENSORS_FILE,
    WEIGHTS_FILE,
    shard_file_name,
)
from strop.training.checkpoints.sharded_tensors import ShardedTensors
from strop.training.ranks.group import RankGroup
from tests.files import digest
from tests.training.test_local_engine import make_run
from tests.training.test_ranks import LORA, close, learn, the_run, weights

FIRST, SECOND = (shard_file_name(WEIGHTS_FILE, rank, 2) for rank in range(2))
OWN = {FIRST, shard_file_name(OPTIMIZER_TENSORS_FILE, 0, 2), "rng.safetensors"}
THEIRS = {SECOND, shard_file_name(OPTIMIZER_TENSORS_FILE, 1, 2), "rank-1-rng.safetensors"}


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
    return make_run(folder, {}, trainer=trainer, checkpoint={"save_concurrency": writers})


@pytest.mark.parametrize("model", ({}, LORA), ids=("full", "lora"))
def test_each_rank_writes_its_own_rows(pair, model_folder, model, tmp_path):
    run = the_run(model_folder, model)
    ranked = Fsdp2Engine(pair, run)
    learn(ranked, run, range(2))
    written = ranked.snapshot().begin_write(tmp_path)()
    assert (
        set(written) == {path.name for path in tmp_path.iterdir()} == {OPTIMIZER_SCALARS_FILE, *OWN, *THEIRS}
    )
    for file in (WEIGHTS_FILE, OPTIMIZER_TENSORS_FILE):
        stored, sizes = ShardedTensors(tmp_path, file), []
        for rank in range(2):
            with safe_open(tmp_path / shard_file_name(file, rank, 2), "pt") as part:
                rows = {name: part.get_tensor(name) for name in part.keys()}  # noqa: SIM118
            sizes.append(sum(tensor.numel() for tensor in rows.values()))
        assert sum(sizes) == sum(stored.shapes[name].numel() for name in stored.shapes)
        assert 0.4 < sizes[1] / sum(sizes) < 0.6
    alone = LocalEngine(run)
    alone.load(tmp_path)
    held = dict(alone.policy.master.named_parameters())
    stored = ShardedTensors(tmp_path, WEIGHTS_FILE)
    assert all(torch.equal(stored.read(name), held[name]) for name in stored.shapes)


def test_a_checkpoint_of_one_process_resumes_on_two_ranks(pair, model_folder, tmp_path):
    run = the_run(model_folder)
    alone = LocalEngine(run)
    learn(alone, run, range(2))
    alone.snapshot().begin_write(tmp_path)()
    ranked = Fsdp2Engine(pair, run)
    ranked.load(tmp_path)
    close(weights(ranked), weights(alone), 0)
    close(learn(ranked, run, range(2, 4)), learn(alone, run, range(2, 4)))


@pytest.mark.parametrize(
    "optimizer",
    [{"type": "sgd", "momentum": 0.9}, {"type": "adagrad"}, {"type": "rmsprop", "momentum": 0.5}],
    ids=lambda optimizer: optimizer["type"],
)
def test_every_shardable_optimizer_resumes_exactly(pair, model_folder, optimizer, tmp_path):
    run = with_optimizer(model_folder, "process", **optimizer, lr=0.01)
    ranked = Fsdp2Engine(pair, run)
    learn(ranked, run, range(2))
    ranked.snapshot().begin_write(tmp_path)()
    expected = learn(ranked, run, range(2, 4)), weights(ranked)
    again = Fsdp2Engine(pair, run)
    again.load(tmp_path)
    assert learn(again, run, range(2, 4)) == expected[0]
    close(weights(again), expected[1], 0)


@pytest.mark.parametrize(
    ("writers", "meanwhile"),
    [("all", OWN | THEIRS), ("node", OWN | THEIRS), ("process", OWN), ("thread", set())],
)
def test_which_files_are_written_while_the_first_rank_is_blocked(
    pair, model_folder, writers, meanwhile, tmp_path
):
    """A pipe without a reader replaces one file, so its writer blocks."""
    os.mkfifo(tmp_path / OPTIMIZER_SCALARS_FILE)
    os.link(tmp_path / OPTIMIZER_SCALARS_FILE, tmp_path / "pipe")
    write = Fsdp2Engine(pair, with_optimizer(model_folder, writers)).snapshot().begin_write(tmp_path)
    with ThreadPoolExecutor() as threads:
        writing = threads.submit(write)
        deadline = time.monotonic() + 30
        while not meanwhile <= others(tmp_path) and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.5)
        found = others(tmp_path)
        (tmp_path / OPTIMIZER_SCALARS_FILE).unlink()
        reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
        with pytest.raises(OSError, match=r"No such file .* rank 0"):  # it was there no more to be checked
            writing.result()
        os.close(reader)
    assert found == meanwhile


def others(folder: Path) -> set[str]:
    """The other files that have been written."""
    return {path.name for path in folder.iterdir()} & (OWN | THEIRS)


def test_an_asynchronous_save_holds_the_state_of_its_start(pair, model_folder, tmp_path):
    run = the_run(model_folder)
    ranked, critic = Fsdp2Engine(pair, run), Fsdp2CriticEngine(pair, *ppo(model_folder))
    learn(ranked, run, range(1))
    folders = [tmp_path / name for name in ("now", "later", "critic")]
    for folder in folders:
        folder.mkdir()
    ranked.snapshot().begin_write(folders[0])()
    begun = [
        ranked.snapshot().begin_write(folders[1], copied=True),
        critic.snapshot().begin_write(folders[2], copied=True),
    ]
    learn(ranked, run, range(1, 2))
    written = [write() for write in begun]
    assert set(written[1]) == {path.name for path in folders[2].iterdir()}
    for path in folders[0].iterdir():
        assert digest(folders[1] / path.name) == digest(path), path.name


def ppo(folder: Path):
    run = the_run(folder, algorithm="ppo")
    return run, run.algorithm.critic


def test_a_write_error_on_another_rank_is_reported_and_training_continues(pair, model_folder, tmp_path):
    run = the_run(model_folder)
    ranked = Fsdp2Engine(pair, run)
    (tmp_path / SECOND).mkdir()
    with pytest.raises(OSError, match=r"directory.* \(on rank 1 of the trainer\)"):
        ranked.snapshot().begin_write(tmp_path)()
    assert learn(ranked, run, range(1))
