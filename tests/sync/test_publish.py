"""Publisher and subscriber over a shared folder and over a collective."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from strop.config.schema.buffer import CheckpointSyncConfig, CollectiveSyncConfig
from strop.errors import CheckpointError, Interrupted, ModelError
from strop.sync.factory import open_weight_receiver, open_weight_sender
from strop.sync.folder_store import FolderVersionStore
from strop.sync.publish import RemotePublisher
from strop.sync.staleness_policy import VersionWindow
from strop.sync.subscribe import Subscriber
from strop.sync.transport import REQUESTED, VersionGone
from strop.workers.waiting import wait_until

CPU = torch.device("cpu")
HERE = {"host": "127.0.0.1", "device": CPU}
LAST_STEP = 8


class Trainer:
    """A trainer whose weights are the step's number."""

    def __init__(self) -> None:
        self.weight = torch.zeros(3)

    def iter_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield "w", self.weight


class Sampler:
    """A sampler that records its loads."""

    joins_process_groups = False

    def __init__(self) -> None:
        self.loaded: list[tuple[int, float]] = []

    def load(self, weights, version: int) -> None:
        [(name, tensor)] = weights
        assert name == "w"
        self.loaded.append((version, float(tensor[0])))


class Pair:
    """A publisher and a subscriber, in one thread or two."""

    def __init__(self, folder: Path, way: str, check=lambda: None, **style) -> None:
        kind = CheckpointSyncConfig if way == "checkpoint" else CollectiveSyncConfig
        self.section = kind.model_validate({"style": style} if style else {})
        self.folder = folder
        self.trainer, self.sampler = Trainer(), Sampler()
        self.receiver = open_weight_receiver(self.section, folder, check=check, **HERE)
        self.subscriber = Subscriber(
            self.sampler,  # type: ignore[arg-type]
            self.section.style,
            self.receiver,
            timeout_seconds=600.0,
            check=check,
        )
        self.start_trainer()

    def start_trainer(self, checkpoint: Path | None = None, pinned: int | None = None) -> None:
        self.sender = open_weight_sender(self.section, self.folder, checkpoint=checkpoint, **HERE)
        self.publisher = RemotePublisher(
            self.trainer,  # type: ignore[arg-type]
            self.section.style,
            self.sender,
            last_step=LAST_STEP,
            pinned_version=pinned,
        )
        self.publisher.start(0, 0)

    def train(self, step: int) -> None:
        self.trainer.weight.fill_(step)
        self.publisher.publish(step)


@pytest.fixture(params=["checkpoint", "collective"])
def pair(request: pytest.FixtureRequest, tmp_path: Path):
    """A function that makes pairs; they are closed after the test."""
    made: list[Pair] = []

    def make(**changes) -> Pair:
        made.append(Pair(tmp_path, request.param, **changes))
        return made[-1]

    yield make
    for one in made:
        one.receiver.close()
        one.sender.close()


def test_version_0_needs_no_trainer_and_later_versions_arrive_unchanged(pair) -> None:
    both = pair()
    assert both.subscriber.before_step(1) == 0
    assert both.sampler.loaded == []
    both.train(1)
    assert both.subscriber.before_step(2) == 1
    both.train(2)
    assert both.subscriber.before_step(3) == 2
    assert both.sampler.loaded == [(1, 1.0), (2, 2.0)]


def test_the_explorer_waits_for_the_required_version(pair) -> None:
    both = pair()
    for step in (1, 2):
        both.train(step)
    later = threading.Timer(0.1, lambda: both.train(3))
    later.start()
    assert both.subscriber.load_newest(VersionWindow(3, 3)) == 3
    later.join()
    assert both.subscriber.load_newest(VersionWindow(3, 3)) == 3
    assert both.sampler.loaded == [(3, 3.0)], "it is loaded once"


def test_versions_that_the_explorer_needs_no_more_are_deleted(pair) -> None:
    both = pair(max_lead="2 steps")
    for step in (1, 2, 3):
        both.train(step)
    assert both.sender.versions() == [1, 2, 3], "the explorer has set no signal yet"
    both.subscriber.before_step(5)
    both.train(4)
    assert both.sender.versions() == [2, 3, 4], "the loaded version stays: the step may be sampled again"
    both.subscriber.after_step(5)
    both.train(5)
    assert both.sender.versions() == [3, 4, 5], "it will not be sampled again"


def test_versions_between_the_loaded_and_the_newest_are_deleted(pair) -> None:
    both = pair(type="bounded", max_staleness="3 steps")
    for step in (1, 2):
        both.train(step)
    both.subscriber.before_step(3)
    for step in (3, 4):
        both.train(step)
    both.subscriber.after_step(3)
    assert both.sender.versions() == [2, 4]


def test_every_nth_version_and_the_last_are_published(pair) -> None:
    both = pair(every="3 steps")
    for step in range(1, 9):
        both.train(step)
    assert both.sender.versions() == [3, 6, 8]


@pytest.fixture
def asking(pair) -> Iterator[tuple[Pair, threading.Thread]]:
    """A pair whose explorer has asked for weights, and the thread in which it waits for them."""
    both = pair(type="on_request", every="2 steps")
    both.subscriber.before_step(1)
    both.train(1)
    both.subscriber.before_step(2)
    assert both.sender.versions() == [], "nothing was requested"
    waiting = threading.Thread(target=both.subscriber.before_step, args=[3])
    waiting.start()
    assert wait_until(
        lambda: both.sender.get_signal(REQUESTED) == 3, "request", timeout_seconds=600, interval_seconds=0.01
    )
    assert both.sender.versions() == []
    yield both, waiting


def test_a_request_is_served_between_two_steps(asking) -> None:
    both, waiting = asking
    both.publisher.serve_request()
    waiting.join()
    assert both.subscriber.version == 1
    both.publisher.serve_request()
    assert both.sender.versions() == [1]


def test_a_request_is_served_at_the_end_of_a_step_if_the_trainer_never_waits(asking) -> None:
    both, waiting = asking
    both.train(2)
    waiting.join()
    assert both.subscriber.version == 2 and both.sender.versions() == [2]


def test_a_timeout_names_the_published_versions(pair) -> None:
    both = pair()
    both.train(1)
    both.subscriber._timeout_seconds = 0.1
    with pytest.raises(CheckpointError, match=r"version 7 .*published versions: 1\..*timeout_seconds"):
        both.subscriber.load_newest(VersionWindow(7, 7))


def test_a_stop_signal_ends_the_wait(pair) -> None:
    def stopped() -> None:
        raise Interrupted("Stopped by SIGTERM.", 15)

    with pytest.raises(Interrupted):
        pair(check=stopped).subscriber.load_newest(VersionWindow(1))


def test_a_damaged_version_is_named(tmp_path: Path) -> None:
    both = Pair(tmp_path, "checkpoint")
    both.train(1)
    path = tmp_path / "sync" / "version-000001.safetensors"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(CheckpointError, match=r"version-000001.*cannot be read"):
        both.subscriber.load_newest(VersionWindow(1))


def test_a_version_that_is_deleted_right_before_it_is_read_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = Pair(tmp_path, "checkpoint")
    both.train(1)
    both.sender.delete([1])
    monkeypatch.setattr(Path, "exists", lambda path: True)  # as it was before
    with pytest.raises(VersionGone):
        dict(both.receiver.read(1))


def test_a_file_that_is_being_written_is_not_a_version(tmp_path: Path) -> None:
    both = Pair(tmp_path, "checkpoint")
    (tmp_path / "sync" / ".version-000001.safetensors.tmp").write_bytes(b"half")
    assert both.sender.versions() == []
    both.train(2)
    assert isinstance(both.sender, FolderVersionStore)
    both.sender.clear()
    assert both.sender.versions() == [] and both.sender.get_signal("taken") == 0


def test_a_version_of_another_model_is_refused(pair) -> None:
    def refuse(weights, version: int) -> None:
        raise ModelError("the sampler's model has no weight 'w'")

    both = pair()
    both.sampler.load = refuse  # type: ignore[method-assign]
    both.train(1)
    with pytest.raises(CheckpointError, match=r"Version 1 .*another model.* no weight 'w'.*same `model`"):
        both.subscriber.load_newest(VersionWindow(1))
