"""Sharded checkpoints: files per rank, write order, and asynchronous saves."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from strop.algorithms.registry import LossSpec
from strop.config.schema import Run
from strop.protocols import TrainingEngine
from strop.training.backend import TrainingBackend
from strop.training.checkpoints.file_writer import (
    OPTIMIZER_SCALARS_FILE,
    OPTIMIZER_TENSORS_FILE,
    WEIGHTS_FILE,
    shard_file_name,
)
from strop.training.checkpoints.tensors import ShardedTensors
from strop.training.engine import local_policy
from strop.workers.waiting import wait_until
from tests.files import digest
from tests.training.backends import LORA
from tests.training.test_local_engine import batch_of, make_run

FIRST, SECOND = (shard_file_name(WEIGHTS_FILE, rank, 2) for rank in range(2))
OWN = {FIRST, shard_file_name(OPTIMIZER_TENSORS_FILE, 0, 2), "rng.safetensors"}
THEIRS = {SECOND, shard_file_name(OPTIMIZER_TENSORS_FILE, 1, 2), "rank-1-rng.safetensors"}


pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("2 ranks")]


def the_run(folder: Path, **sections: Any) -> Run:
    """A run on two ranks."""
    return make_run(folder, trainer={"engine": {"type": "fsdp2", "device": "cpu"}}, **sections)


def learn(engine: TrainingEngine, run: Run, seed: int) -> None:
    engine.forward_backward(batch_of(seed), LossSpec(run.algorithm, 64))
    engine.step()


@pytest.mark.parametrize("model", [{}, LORA], ids=["full", "LoRA"])
def test_each_rank_writes_its_own_rows(pair, folder, model, tmp_path):
    run = the_run(folder, model=model | {"path": str(folder)})
    ranked = TrainingBackend(run, pair, "").policy()
    learn(ranked, run, 0)
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
    alone = local_policy(run)
    alone.load(tmp_path)
    held = dict(alone.policy.master.named_parameters())
    stored = ShardedTensors(tmp_path, WEIGHTS_FILE)
    assert all(torch.equal(stored.read(name), held[name]) for name in stored.shapes)


@pytest.mark.parametrize(
    ("writers", "meanwhile"),
    [("all", OWN | THEIRS), ("node", OWN | THEIRS), ("process", OWN), ("thread", set())],
)
def test_which_files_are_written_while_the_first_rank_is_blocked(pair, folder, writers, meanwhile, tmp_path):
    """A pipe without a reader replaces one file, so its writer blocks."""
    os.mkfifo(tmp_path / OPTIMIZER_SCALARS_FILE)
    os.link(tmp_path / OPTIMIZER_SCALARS_FILE, tmp_path / "pipe")
    write = (
        TrainingBackend(the_run(folder, checkpoint={"save_concurrency": writers}), pair, "")
        .policy()
        .snapshot()
        .begin_write(tmp_path)
    )
    with ThreadPoolExecutor() as threads:
        writing = threads.submit(write)
        wait_until(lambda: meanwhile <= others(tmp_path), "files", timeout_seconds=600, interval_seconds=0.01)
        time.sleep(0.2)  # in which no other file should come
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


def test_an_asynchronous_save_holds_the_state_of_its_start(pair, folder, tmp_path):
    run = the_run(folder)
    with_critic = the_run(folder, algorithm="ppo")
    ranked = TrainingBackend(run, pair, "").policy()
    critic = TrainingBackend(with_critic, pair, "").critic(with_critic.algorithm.critic)
    learn(ranked, run, 0)
    folders = [tmp_path / name for name in ("now", "later", "critic")]
    for folder in folders:
        folder.mkdir()
    ranked.snapshot().begin_write(folders[0])()
    begun = [
        ranked.snapshot().begin_write(folders[1], copied=True),
        critic.snapshot().begin_write(folders[2], copied=True),
    ]
    learn(ranked, run, 1)
    written = [write() for write in begun]
    assert set(written[1]) == {path.name for path in folders[2].iterdir()}
    for path in folders[0].iterdir():
        assert digest(folders[1] / path.name) == digest(path), path.name


def test_a_write_error_on_another_rank_is_reported_and_training_continues(pair, folder, tmp_path):
    run = the_run(folder)
    ranked = TrainingBackend(run, pair, "").policy()
    (tmp_path / SECOND).mkdir()
    with pytest.raises(OSError, match=r"directory.* \(on rank 1 of the trainer\)"):
        ranked.snapshot().begin_write(tmp_path)()
    learn(ranked, run, 0)
