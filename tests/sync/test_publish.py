"""Weights through a folder, and from memory to memory: what both ways have in common."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from strop.config.schema.synchronizer import CheckpointSync, CollectiveSync
from strop.errors import CheckpointError, Interrupted, ModelError
from strop.sync.folder import FolderVersions
from strop.sync.publish import Publisher, Subscriber
from strop.sync.style import Window
from strop.sync.table import open_inbox, open_outbox

CPU = torch.device("cpu")
HERE = {"host": "127.0.0.1", "device": CPU}


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
    """Both sides, in two threads or one."""

    def __init__(self, folder: Path, way: str, check=lambda: None, **style) -> None:
        kind = CheckpointSync if way == "checkpoint" else CollectiveSync
        self.section = kind.model_validate({"style": style} if style else {})
        self.folder = folder
        self.trainer, self.sampler = Trainer(), Sampler()
        self.inbox = open_inbox(self.section, folder, check=check, **HERE)
        self.subscriber = Subscriber(
            self.sampler,  # type: ignore[arg-type]
            self.section.style,
            self.inbox,
            timeout_seconds=5.0,
            check=check,
        )
        self.start_trainer()

    def start_trainer(self, checkpoint: Path | None = None, pinned: int | None = None) -> None:
        self.outbox = open_outbox(self.section, self.folder, checkpoint=checkpoint, **HERE)
        self.publisher = Publisher(self.trainer, self.section.style, self.outbox, pinned=pinned)  # type: ignore[arg-type]
        self.publisher.begin()

    def train(self, step: int, last: int = 100) -> None:
        self.trainer.weight.fill_(step)
        self.publisher.after(step, last)


@pytest.fixture(params=["checkpoint", "collective"])
def pair(request: pytest.FixtureRequest, tmp_path: Path):
    """Makes a pair; closes it."""
    made: list[Pair] = []

    def make(**changes) -> Pair:
        made.append(Pair(tmp_path, request.param, **changes))
        return made[-1]

    yield make
    for one in made:
        one.inbox.close()
        one.outbox.close()


def test_version_0_needs_no_trainer_and_later_ones_arrive_as_they_were_written(pair) -> None:
    both = pair()
    assert both.subscriber.before(1) == 0
    assert both.sampler.loaded == []
    both.train(1)
    assert both.subscriber.before(2) == 1
    both.train(2)
    assert both.subscriber.before(3) == 2
    assert both.sampler.loaded == [(1, 1.0), (2, 2.0)]


def test_a_version_is_waited_for_and_an_older_or_newer_one_will_not_do(pair) -> None:
    both = pair()
    for step in (1, 2):
        both.train(step)
    later = threading.Timer(0.2, lambda: both.train(3))
    later.start()
    started = time.monotonic()
    assert both.subscriber.take(Window(3, 3)) == 3
    assert time.monotonic() - started >= 0.15
    later.join()
    assert both.subscriber.take(Window(3, 3)) == 3
    assert both.sampler.loaded == [(3, 3.0)], "it is given once"


def test_versions_go_once_the_explorer_is_past_them(pair) -> None:
    both = pair(ahead="2 steps")
    for step in (1, 2, 3):
        both.train(step)
    assert both.outbox.all() == [1, 2, 3], "the explorer has not said what it has"
    both.subscriber.before(5)
    both.train(4)
    assert both.outbox.all() == [2, 3, 4], "the one it took stays: the step may have to be done again"
    both.subscriber.after(5)
    both.train(5)
    assert both.outbox.all() == [3, 4, 5], "now it will not"


def test_where_the_newest_is_taken_those_in_between_go_too(pair) -> None:
    both = pair(type="free", max_staleness="3 steps")
    for step in (1, 2):
        both.train(step)
    both.subscriber.before(3)
    for step in (3, 4):
        both.train(step)
    both.subscriber.after(3)
    assert both.outbox.all() == [2, 4]


def test_only_every_so_many_steps_and_the_last_are_published(pair) -> None:
    both = pair(every="3 steps")
    for step in range(1, 9):
        both.train(step, last=8)
    assert both.outbox.all() == [3, 6, 8]


def test_the_explorer_asks_and_is_answered_between_two_steps(pair) -> None:
    both = pair(type="explorer", every="2 steps")
    both.subscriber.before(1)
    both.train(1)
    both.subscriber.before(2)
    assert both.outbox.all() == [], "nobody has asked"
    done = threading.Event()
    thread = threading.Thread(target=lambda: (both.subscriber.before(3), done.set()))
    thread.start()
    assert not done.wait(0.2)
    both.publisher.answer()
    thread.join(5)
    assert done.is_set() and both.subscriber.version == 1
    both.publisher.answer()
    assert both.outbox.all() == [1]


def test_patience_ends_and_says_what_is_there(pair) -> None:
    both = pair()
    both.train(1)
    both.subscriber._timeout_seconds = 0.1
    with pytest.raises(CheckpointError, match=r"version 7 .*published there: 1\..*timeout_seconds"):
        both.subscriber.take(Window(7, 7))


def test_a_stop_signal_ends_the_wait(pair) -> None:
    def stopped() -> None:
        raise Interrupted("Stopped by SIGTERM.", 15)

    with pytest.raises(Interrupted):
        pair(check=stopped).subscriber.take(Window(1))


def test_a_damaged_version_is_named(tmp_path: Path) -> None:
    both = Pair(tmp_path, "checkpoint")
    both.train(1)
    path = tmp_path / "sync" / "version-000001.safetensors"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(CheckpointError, match=r"version-000001.*cannot be read"):
        both.subscriber.take(Window(1))


def test_a_file_that_is_being_written_is_no_version(tmp_path: Path) -> None:
    both = Pair(tmp_path, "checkpoint")
    (tmp_path / "sync" / ".version-000001.tmp").write_bytes(b"half")
    assert both.outbox.all() == []
    both.train(2)
    assert isinstance(both.outbox, FolderVersions)
    both.outbox.clear()
    assert both.outbox.all() == [] and both.outbox.said("taken") == 0


def test_a_version_of_another_model_is_refused(pair) -> None:
    def refuse(weights, version: int) -> None:
        raise ModelError("the sampler's model has no weight 'w'")

    both = pair()
    both.sampler.load = refuse  # type: ignore[method-assign]
    both.train(1)
    with pytest.raises(CheckpointError, match=r"Version 1 .*another model.* no weight 'w'.*same `model`"):
        both.subscriber.take(Window(1))
