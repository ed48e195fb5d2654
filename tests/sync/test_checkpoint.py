"""Weights through a folder."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from strop.config.schema.synchronizer import CheckpointSync
from strop.errors import CheckpointError, Interrupted, ModelError
from strop.sync.checkpoint import Publisher, Subscriber
from strop.sync.style import Window
from strop.sync.versions import Versions


class Trainer:
    """Weights that say how far it is."""

    def __init__(self) -> None:
        self.weight = torch.zeros(3)

    def iter_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield "w", self.weight


class Sampler:
    """Remembers what it was given."""

    def __init__(self) -> None:
        self.loaded: list[tuple[int, float]] = []

    def load(self, weights, version: int) -> None:
        [(name, tensor)] = weights
        assert name == "w"
        self.loaded.append((version, float(tensor[0])))


class Pair:
    def __init__(self, folder: Path, check=lambda: None, **style) -> None:
        values = {"style": style} if style else {}
        section = CheckpointSync.model_validate({"timeout_seconds": 5.0, **values})
        self.trainer, self.sampler = Trainer(), Sampler()
        self.publisher = Publisher(self.trainer, section, folder)  # type: ignore[arg-type]
        self.subscriber = Subscriber(self.sampler, section, folder, check=check)  # type: ignore[arg-type]
        self.versions = Versions(folder / "sync")

    def train(self, step: int, last: int = 100) -> None:
        self.trainer.weight.fill_(step)
        self.publisher.after(step, last)


def test_version_0_needs_no_trainer_and_later_ones_arrive_as_they_were_written(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    assert pair.subscriber.before(1) == 0
    assert pair.sampler.loaded == []
    pair.train(1)
    assert pair.subscriber.before(2) == 1
    pair.train(2)
    assert pair.subscriber.before(3) == 2
    assert pair.sampler.loaded == [(1, 1.0), (2, 2.0)]


def test_a_version_is_waited_for_and_an_older_or_newer_one_will_not_do(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    for step in (1, 2):
        pair.train(step)
    later = threading.Timer(0.2, lambda: pair.train(3))
    later.start()
    started = time.monotonic()
    assert pair.subscriber.take(Window(3, 3)) == 3
    assert time.monotonic() - started >= 0.15
    later.join()
    assert pair.subscriber.take(Window(3, 3)) == 3
    assert pair.sampler.loaded == [(3, 3.0)], "it is given once"


def test_versions_go_once_the_explorer_is_past_them(tmp_path: Path) -> None:
    pair = Pair(tmp_path, type="free", max_staleness="3 steps")
    for step in (1, 2, 3):
        pair.train(step)
    assert pair.versions.all() == [1, 2, 3], "the explorer has not said what it has"
    pair.subscriber.before(4)
    pair.train(4)
    assert pair.versions.all() == [3, 4], "the one it took stays: the step may have to be done again"


def test_only_every_so_many_steps_and_the_last_are_published(tmp_path: Path) -> None:
    pair = Pair(tmp_path, every="3 steps")
    for step in range(1, 9):
        pair.train(step, last=8)
    assert pair.versions.all() == [3, 6, 8]


def test_the_explorer_asks_and_is_answered_between_two_steps(tmp_path: Path) -> None:
    pair = Pair(tmp_path, type="explorer", every="2 steps")
    pair.subscriber.before(1)
    pair.train(1)
    pair.subscriber.before(2)
    assert pair.versions.all() == [], "nobody has asked"
    done = threading.Event()
    thread = threading.Thread(target=lambda: (pair.subscriber.before(3), done.set()))
    thread.start()
    assert not done.wait(0.2)
    pair.publisher.answer()
    thread.join(5)
    assert done.is_set() and pair.subscriber.version == 1
    pair.publisher.answer()
    assert pair.versions.all() == [1]


def test_patience_ends_and_says_what_is_there(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.train(1)
    pair.subscriber._section = pair.subscriber._section.model_copy(update={"timeout_seconds": 0.1})
    with pytest.raises(CheckpointError, match=r"version 7 .*published there: 1\..*timeout_seconds"):
        pair.subscriber.take(Window(7, 7))


def test_a_stop_signal_ends_the_wait(tmp_path: Path) -> None:
    def stopped() -> None:
        raise Interrupted("Stopped by SIGTERM.", 15)

    with pytest.raises(Interrupted):
        Pair(tmp_path, check=stopped).subscriber.take(Window(1))


def test_a_damaged_version_is_named(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.train(1)
    path = tmp_path / "sync" / "version-000001.safetensors"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(CheckpointError, match=r"version-000001.*cannot be read"):
        pair.subscriber.take(Window(1))


def test_a_file_that_is_being_written_is_no_version(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    (tmp_path / "sync" / ".version-000001.tmp").write_bytes(b"half")
    assert pair.versions.all() == []
    pair.train(2)
    pair.versions.clear()
    assert pair.versions.all() == [] and pair.versions.said("taken") == 0


def test_a_version_of_another_model_is_refused(tmp_path: Path) -> None:
    def refuse(weights, version: int) -> None:
        raise ModelError("the sampler's model has no weight 'w'")

    pair = Pair(tmp_path)
    pair.sampler.load = refuse  # type: ignore[method-assign]
    pair.train(1)
    with pytest.raises(CheckpointError, match=r"Version 1 .*another model.* no weight 'w'.*same `model`"):
        pair.subscriber.take(Window(1))
    assert pair.subscriber.version == 0
