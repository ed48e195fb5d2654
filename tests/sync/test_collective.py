"""Weights from memory to memory: packing, and two processes of which either is killed in the middle."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from strop.config.schema.model import Lora, Model
from strop.config.schema.synchronizer import CollectiveSync, Fixed, Free
from strop.models.load import load_model
from strop.models.lora import add_lora, merged_weights
from strop.models.tiny import make_model
from strop.sync.collective import pair, parcel
from strop.sync.collective.inbox import CollectiveInbox
from strop.sync.collective.outbox import ADDRESS, CollectiveOutbox
from strop.sync.collective.parcel import Bucket, pack
from strop.sync.folder import FolderVersions
from strop.sync.publish import Publisher, Subscriber
from strop.sync.style import Window
from strop.sync.versions import ASKED, SHIFT, TAKEN, VersionGone
from strop.workers.address import Address

from .test_publish import Sampler, Trainer
from .trainer_process import BUCKETS, WEIGHTS

CPU = torch.device("cpu")
SHAPES = st.lists(st.integers(0, 5), max_size=3).map(tuple)
DTYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.uint8])


@given(st.lists(st.tuples(SHAPES, DTYPES), max_size=12), st.integers(1, 200))
def test_what_is_packed_is_unpacked(kinds, bucket_bytes):
    weights = {
        f"w{n}": (torch.rand(shape) * 100).to(dtype).transpose(0, -1) if shape else torch.tensor(n).to(dtype)
        for n, (shape, dtype) in enumerate(kinds)
    }
    before, parcel.BUCKET_BYTES = parcel.BUCKET_BYTES, bucket_bytes
    try:
        sent = pack(weights.items(), CPU)
    finally:
        parcel.BUCKET_BYTES = before
    arrived = []
    for bucket in sent:
        empty = Bucket.empty(json.loads(json.dumps(bucket.to_json())), CPU)
        empty.content.copy_(bucket.content)
        arrived += empty.weights()
        largest = max(weights[label.name].numel() * label.dtype.itemsize for label in bucket.labels)
        assert len(bucket.content) <= max(bucket_bytes, largest)
    assert [name for name, _ in arrived] == list(weights)
    for name, tensor in arrived:
        assert tensor.dtype == weights[name].dtype and torch.equal(tensor, weights[name])


@contextmanager
def both_ends(folder: Path, checkpoint: Path | None = None, check=lambda: None):
    outbox = CollectiveOutbox(folder, CollectiveSync(), "127.0.0.1", CPU, checkpoint)
    inbox = CollectiveInbox(folder, "127.0.0.1", CPU, check)
    outbox.begin()
    try:
        yield outbox, inbox
    finally:
        inbox.close()
        outbox.close()


@pytest.mark.parametrize("lora", [None, Lora(rank=2)], ids=["whole", "adapter"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_a_models_weights_arrive_as_they_are(tmp_path, tied, lora):
    make_model(tmp_path / "m", ["a b"], vocab_size=300, hidden_size=32, layers=1, tied=tied)
    model = load_model(Model(path=str(tmp_path / "m")), device=CPU)
    if lora:
        model = add_lora(model, lora, torch.float32)
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter)
    with both_ends(tmp_path) as (outbox, inbox):
        outbox.write(3, merged_weights(model))
        arrived = dict(inbox.read(3))
    expected = dict(merged_weights(model))
    assert arrived.keys() == expected.keys() and ("lm_head.weight" in arrived) is not tied
    assert all(torch.equal(arrived[name], tensor) for name, tensor in expected.items())


def test_what_was_published_does_not_change_with_the_trainers_weights(tmp_path):
    weight = torch.ones(4)
    with both_ends(tmp_path) as (outbox, inbox):
        outbox.write(1, [("w", weight)])
        weight.zero_()
        assert dict(inbox.read(1))["w"].tolist() == [1, 1, 1, 1]
        outbox.delete([1])
        with pytest.raises(VersionGone):
            dict(inbox.read(1))
        outbox.write(2, [("w", weight)])
        assert dict(inbox.read(2))["w"].tolist() == [0, 0, 0, 0], "over the same line"


def test_whoever_does_not_know_the_token_hears_nothing(tmp_path):
    with both_ends(tmp_path) as (outbox, inbox):
        right = Address.load(tmp_path / ADDRESS)
        assert right is not None and (tmp_path / ADDRESS).stat().st_mode & 0o777 == 0o600
        outbox.write(1, [("w", torch.ones(1))])
        for wrong in (b'"guess"', b"[1]", '"é"'.encode(), b"\xff"):
            with socket.create_connection((right.host, right.port)) as stranger:
                stranger.sendall(len(wrong).to_bytes(4, "big") + wrong)
                assert stranger.recv(1) == b""
        assert inbox.all() == [1], "and nobody else is the worse for it"


def test_a_trainer_started_again_has_what_its_checkpoint_held(tmp_path):
    """The explorer, two steps ahead, wants version 1, and the trainer has saved after step 3."""
    style = Fixed(ahead="2 steps")
    with both_ends(tmp_path) as (outbox, inbox):
        trainer = Trainer()
        publisher = Publisher(trainer, style, outbox)
        for step in (1, 2, 3):
            trainer.weight.fill_(step)
            publisher.after(step, 9)
        inbox.say(TAKEN, 1)
        snapshot = publisher.snapshot()
        assert snapshot is not None
        trainer.weight.fill_(4)
        publisher.after(4, 9)
        (tmp_path / "saved").mkdir()
        snapshot.begin(tmp_path / "saved", copied=True)()
    with both_ends(tmp_path, tmp_path / "saved") as (outbox, inbox):
        publisher = Publisher(trainer, style, outbox)
        trainer.weight.fill_(3)
        publisher.after(3, 9)
        assert inbox.all() == [1, 2, 3]
        assert [dict(inbox.read(version))["w"][0] for version in (1, 2, 3)] == [1, 2, 3]


def test_in_turns_a_checkpoint_needs_no_version_beside_it(tmp_path):
    with both_ends(tmp_path) as (outbox, inbox):
        publisher = Publisher(Trainer(), Fixed(), outbox)
        subscriber = Subscriber(Sampler(), Fixed(), inbox, timeout_seconds=5, check=lambda: None)
        for step in (1, 2):
            subscriber.before(step)
            subscriber.after(step)
            publisher.after(step, 9)
        assert outbox.all() == [2] and publisher.snapshot() is None


def test_the_version_that_a_killed_explorer_began_its_step_with_is_published_again(tmp_path):
    """Every second step is published, and the explorer had got step 3's when it asked."""
    with both_ends(tmp_path) as (outbox, inbox):
        publisher = Publisher(Trainer(), Free(every="2 steps", max_staleness="2 steps"), outbox, pinned=3)
        for step in (2, 3, 4, 6):
            publisher.after(step, 9)
        assert inbox.all() == [3, 6]


def test_the_end_of_the_run_leaves_the_versions_in_its_folder(tmp_path):
    with both_ends(tmp_path) as (outbox, inbox):
        outbox.write(9, [("w", torch.ones(2))])
        assert inbox.all() == [9]
        outbox.finish(9)
        outbox.close()
        assert inbox.all() == [9] and dict(inbox.read(9))["w"].tolist() == [1, 1]
        assert inbox.ended() == 9
    with both_ends(tmp_path) as (outbox, inbox):
        assert inbox.all() == [], "a trainer that is started again publishes what counts"


def test_the_trainers_words_count_until_its_next_life_says_others(tmp_path):
    inbox = CollectiveInbox(tmp_path, "127.0.0.1", CPU, lambda: None)
    lives = [CollectiveOutbox(tmp_path, CollectiveSync(), "127.0.0.1", CPU, None) for _ in range(2)]
    inbox.say(ASKED, 4)
    lives[0].say(SHIFT, 3)
    assert inbox.said(SHIFT) == 0, "nobody knows of it yet"
    lives[0].begin()
    assert (inbox.said(SHIFT), lives[0].said(ASKED)) == (3, 4)
    lives[0].close()
    assert (inbox.said(SHIFT), inbox.all()) == (3, [])
    lives[1].begin()
    assert (inbox.said(SHIFT), lives[1].said(ASKED)) == (3, 4)
    lives[1].say(SHIFT, 2)
    assert inbox.said(SHIFT) == 2
    inbox.close()
    lives[1].close()


class Receiver:
    """A sampler that keeps all it is given."""

    def __init__(self) -> None:
        self.weights: dict[str, torch.Tensor] = {}

    def load(self, weights, version: int) -> None:
        self.weights = dict(weights)


def subscriber_of(inbox, receiver, check=lambda: None) -> Subscriber:
    return Subscriber(receiver, Fixed(), inbox, timeout_seconds=60, check=check)


def start_trainer(folder: Path, *limit: object) -> subprocess.Popen:
    command = [sys.executable, "-m", "tests.sync.trainer_process", str(folder), *map(str, limit)]
    return subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"})


KILLED = """
import os, signal, sys, torch
from pathlib import Path
from strop.sync.collective.inbox import CollectiveInbox
inbox = CollectiveInbox(Path(sys.argv[1]), "127.0.0.1", torch.device("cpu"), lambda: None)
for _ in inbox.read(1):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_an_explorer_killed_in_the_middle_of_a_transfer_keeps_nobody(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(parcel, "BUCKET_BYTES", 80_000)
    with both_ends(tmp_path) as (outbox, inbox):
        outbox.write(1, WEIGHTS.items())
        process = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], timeout=60)
        assert process.returncode == -signal.SIGKILL
        receiver = Receiver()
        began = time.monotonic()
        assert subscriber_of(inbox, receiver).take(Window(1, 1)) == 1
        assert time.monotonic() - began < 5
        assert all(torch.equal(receiver.weights[name], tensor) for name, tensor in WEIGHTS.items())
        outbox.write(2, WEIGHTS.items())  # it would raise what has befallen a thread
    said = [record.message for record in caplog.records if record.name == "strop.sync"]
    assert said == [
        "The explorer was lost while version 1 of the weights went to it; it gets them again when it is back."
    ]


def test_a_trainer_killed_in_the_middle_of_a_transfer_is_waited_for(tmp_path, caplog):
    inbox = CollectiveInbox(tmp_path, "127.0.0.1", CPU, lambda: None)
    receiver = Receiver()
    processes = [start_trainer(tmp_path, BUCKETS - 1)]

    def again() -> None:
        processes[0].wait()
        processes.append(start_trainer(tmp_path))

    thread = threading.Thread(target=again)
    thread.start()
    try:
        assert subscriber_of(inbox, receiver).take(Window(1, 1)) == 1
    finally:
        thread.join()
        for process in processes:
            process.kill()
        inbox.close()
    assert processes[0].returncode == -signal.SIGKILL
    assert all(torch.equal(receiver.weights[name], tensor) for name, tensor in WEIGHTS.items())
    said = [record.message for record in caplog.records if record.name == "strop.sync"]
    assert said == [
        "The trainer was lost while version 1 of the weights came from it; the explorer waits until it is "
        "back."
    ]


def test_a_trainer_that_stands_still_is_given_up_and_a_signal_is_heard_meanwhile(tmp_path, monkeypatch):
    monkeypatch.setattr(pair, "PART_SECONDS", 2.0)
    checks = [time.monotonic()]
    process = start_trainer(tmp_path, 1, "stop")
    inbox = CollectiveInbox(tmp_path, "127.0.0.1", CPU, lambda: checks.append(time.monotonic()))
    try:
        while inbox.all() != [1]:
            time.sleep(0.05)
        del checks[:-1]
        with pytest.raises(VersionGone):
            dict(inbox.read(1))
    finally:
        process.kill()
        process.wait()
    gaps = [after - before for before, after in itertools.pairwise(checks)]
    assert checks[-1] - checks[0] > 1.5 and max(gaps) < 1.0
    assert inbox.all() == []


def test_what_goes_wrong_in_a_thread_of_the_trainer_is_raised_by_the_trainer(tmp_path):
    with both_ends(tmp_path) as (outbox, inbox):
        outbox._shelf.put(1, "no buckets")  # type: ignore[arg-type]
        with pytest.raises(VersionGone):
            dict(inbox.read(1))
        with pytest.raises(AttributeError):
            outbox.write(2, [])
    assert FolderVersions(tmp_path).all() == []
