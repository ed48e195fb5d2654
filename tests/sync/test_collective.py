"""Weights from memory to memory: packing, and two processes of which either is killed in the middle."""

from __future__ import annotations

import json
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from strop.config.schema.buffer import BoundedStyleConfig, CollectiveSyncConfig, FixedStyleConfig
from strop.config.schema.model import LoraConfig, ModelConfig
from strop.errors import CheckpointError, PlacementError, WeightTransferError
from strop.inference import weight_transfer
from strop.inference.weight_transfer import Bucket, BucketReceiver, WeightClient, pack_buckets
from strop.models.loading import load_model
from strop.models.lora import add_lora, merged_weights
from strop.models.tiny import make_model
from strop.sync.collective.receiver import CollectiveReceiver
from strop.sync.collective.sender import TRAINER_ADDRESS_FILE, CollectiveSender, VersionStore, WeightServer
from strop.sync.folder_store import FolderVersionStore
from strop.sync.publish import RemotePublisher
from strop.sync.staleness_policy import VersionWindow
from strop.sync.subscribe import Subscriber
from strop.sync.transport import GROUP_SHORTFALL, OLDEST_NEEDED, REQUESTED, PublishedVersion, VersionGone
from strop.workers.connection import Address
from strop.workers.waiting import wait_until

from .test_publish import Sampler, Trainer
from .trainer_process import BUCKETS, WEIGHTS, explore, start, train

CPU = torch.device("cpu")
SHAPES = st.lists(st.integers(0, 5), max_size=3).map(tuple)
DTYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.uint8])


@given(st.lists(st.tuples(SHAPES, DTYPES), max_size=12), st.integers(1, 200))
def test_packed_weights_are_unpacked_unchanged(kinds, bucket_bytes):
    weights = {
        f"w{n}": (torch.rand(shape) * 100).to(dtype).transpose(0, -1) if shape else torch.tensor(n).to(dtype)
        for n, (shape, dtype) in enumerate(kinds)
    }
    before, weight_transfer.BUCKET_BYTES = weight_transfer.BUCKET_BYTES, bucket_bytes
    try:
        sent = pack_buckets(weights.items(), CPU)
    finally:
        weight_transfer.BUCKET_BYTES = before
    arrived = []
    for bucket in sent:
        empty = Bucket.allocate(json.loads(json.dumps(bucket.metadata())), CPU)
        empty.data.copy_(bucket.data)
        arrived += empty.weights()
        largest = max(weights[label.name].numel() * label.dtype.itemsize for label in bucket.slots)
        assert len(bucket.data) <= max(bucket_bytes, largest)
    assert [name for name, _ in arrived] == list(weights)
    for name, tensor in arrived:
        assert tensor.dtype == weights[name].dtype and torch.equal(tensor, weights[name])


@contextmanager
def sender_and_receiver(folder: Path, checkpoint: Path | None = None, check=lambda: None):
    sender = CollectiveSender(folder, CollectiveSyncConfig(), "127.0.0.1", CPU, checkpoint)
    receiver = CollectiveReceiver(folder, "127.0.0.1", CPU, check)
    sender.announce_start()
    try:
        yield sender, receiver
    finally:
        receiver.close()
        sender.close()


@pytest.mark.parametrize("lora", [None, LoraConfig(rank=2)], ids=["whole", "adapter"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_model_weights_arrive_unchanged(tmp_path, tied, lora):
    make_model(tmp_path / "m", ["a b"], vocab_size=300, hidden_size=32, layers=1, tied=tied)
    model = load_model(ModelConfig(path=str(tmp_path / "m")), device=CPU)
    if lora:
        model = add_lora(model, lora, torch.float32)
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter)
    with sender_and_receiver(tmp_path) as (sender, receiver):
        sender.write(3, merged_weights(model))
        arrived = dict(receiver.read(3))
    expected = dict(merged_weights(model))
    assert arrived.keys() == expected.keys() and ("lm_head.weight" in arrived) is not tied
    assert all(torch.equal(arrived[name], tensor) for name, tensor in expected.items())


def test_published_versions_do_not_change_with_the_trainers_weights(tmp_path):
    weight = torch.ones(4)
    with sender_and_receiver(tmp_path) as (sender, receiver):
        sender.write(1, [("w", weight)])
        weight.zero_()
        assert dict(receiver.read(1))["w"].tolist() == [1, 1, 1, 1]
        sender.delete([1])
        with pytest.raises(VersionGone):
            dict(receiver.read(1))
        sender.write(2, [("w", weight)])
        assert dict(receiver.read(2))["w"].tolist() == [0, 0, 0, 0], "over the same connection"


def test_clients_without_the_token_get_no_reply(tmp_path):
    with sender_and_receiver(tmp_path) as (sender, receiver):
        right = Address.load(tmp_path / TRAINER_ADDRESS_FILE)
        assert right is not None and (tmp_path / TRAINER_ADDRESS_FILE).stat().st_mode & 0o777 == 0o600
        sender.write(1, [("w", torch.ones(1))])
        with socket.create_connection((right.host, right.port)) as stranger:
            stranger.sendall(b"x" * 64)
            assert stranger.recv(1) == b""
        assert receiver.versions() == [1], "other clients are served"


def test_a_restarted_trainer_has_the_versions_of_its_checkpoint(tmp_path):
    """The explorer, two steps ahead, needs version 1; the trainer has saved after step 3."""
    style = FixedStyleConfig(max_lead="2 steps")
    with sender_and_receiver(tmp_path) as (sender, receiver):
        trainer = Trainer()
        publisher = RemotePublisher(trainer, style, sender, last_step=9)
        for step in (1, 2, 3):
            trainer.weight.fill_(step)
            publisher.publish(step)
        receiver.set_signal(OLDEST_NEEDED, 1)
        snapshot = publisher.snapshot()
        assert snapshot is not None
        trainer.weight.fill_(4)
        publisher.publish(4)
        (tmp_path / "saved").mkdir()
        snapshot.begin_write(tmp_path / "saved", copied=True)()
    with sender_and_receiver(tmp_path, tmp_path / "saved") as (sender, receiver):
        publisher = RemotePublisher(trainer, style, sender, last_step=9)
        trainer.weight.fill_(3)
        publisher.publish(3)
        assert receiver.versions() == [1, 2, 3]
        assert [dict(receiver.read(version))["w"][0] for version in (1, 2, 3)] == [1, 2, 3]


def test_without_lead_a_checkpoint_needs_no_further_version(tmp_path):
    with sender_and_receiver(tmp_path) as (sender, receiver):
        publisher = RemotePublisher(Trainer(), FixedStyleConfig(), sender, last_step=9)
        subscriber = Subscriber(
            Sampler(), FixedStyleConfig(), receiver, timeout_seconds=600, check=lambda: None
        )
        for step in (1, 2):
            subscriber.before_step(step)
            subscriber.after_step(step)
            publisher.publish(step)
        assert sender.versions() == [2] and publisher.snapshot() is None


def test_the_version_of_a_killed_explorers_step_is_published_again(tmp_path):
    """Every second step is published; the explorer had loaded version 3 on request."""
    with sender_and_receiver(tmp_path) as (sender, receiver):
        publisher = RemotePublisher(
            Trainer(),
            BoundedStyleConfig(every="2 steps", max_staleness="2 steps"),
            sender,
            last_step=9,
            pinned_version=3,
        )
        for step in (2, 3, 4, 6):
            publisher.publish(step)
        assert receiver.versions() == [3, 6]


def test_the_final_versions_are_written_into_the_runs_folder(tmp_path):
    with sender_and_receiver(tmp_path) as (sender, receiver):
        sender.write(9, [("w", torch.ones(2))])
        assert receiver.versions() == [9]
        sender.finish(9)
        sender.close()
        assert receiver.versions() == [9] and dict(receiver.read(9))["w"].tolist() == [1, 1]
        assert receiver.final_version() == 9
    with sender_and_receiver(tmp_path) as (sender, receiver):
        assert receiver.versions() == [], "a restarted trainer publishes again"


def test_signals_of_the_trainer_are_kept_until_a_restarted_trainer_sets_others(tmp_path):
    receiver = CollectiveReceiver(tmp_path, "127.0.0.1", CPU, lambda: None)
    trainers = [CollectiveSender(tmp_path, CollectiveSyncConfig(), "127.0.0.1", CPU, None) for _ in range(2)]
    receiver.set_signal(REQUESTED, 4)
    trainers[0].set_signal(GROUP_SHORTFALL, 3)
    assert receiver.get_signal(GROUP_SHORTFALL) == 0, "the trainer is not announced yet"
    trainers[0].announce_start()
    assert (receiver.get_signal(GROUP_SHORTFALL), trainers[0].get_signal(REQUESTED)) == (3, 4)
    trainers[0].close()
    assert (receiver.get_signal(GROUP_SHORTFALL), receiver.versions()) == (3, [])
    trainers[1].announce_start()
    assert (receiver.get_signal(GROUP_SHORTFALL), trainers[1].get_signal(REQUESTED)) == (3, 4)
    trainers[1].set_signal(GROUP_SHORTFALL, 2)
    assert receiver.get_signal(GROUP_SHORTFALL) == 2
    receiver.close()
    trainers[1].close()


class RecordingSampler:
    """A sampler that keeps the weights that it has loaded."""

    joins_process_groups = False

    def __init__(self) -> None:
        self.weights: dict[str, torch.Tensor] = {}

    def load(self, weights, version: int) -> None:
        self.weights = dict(weights)


def make_subscriber(receiver, sampler, check=lambda: None) -> Subscriber:
    return Subscriber(sampler, FixedStyleConfig(), receiver, timeout_seconds=600, check=check)


class Engine:
    """An engine of two processes, here threads, that receives weights itself."""

    joins_process_groups = True

    def __init__(self) -> None:
        self.client = WeightClient()
        self.ranks = [BucketReceiver(rank, CPU) for rank in (1, 2)]
        self.versions: list[int] = []
        self.weights: list[dict[str, torch.Tensor]] = []
        self.annotations: dict[str, list[float]] = {}

    def load_published(self, published: PublishedVersion, version: int) -> None:
        offer = self.client.request(published.trainer, version, [None, None])
        assert offer.rendezvous.world_size == 3

        def receive(rank: BucketReceiver) -> dict[str, torch.Tensor]:
            return dict(rank.receive(offer.rendezvous, offer.buckets, self.client.host))

        with ThreadPoolExecutor(2) as threads:
            self.weights = list(threads.map(receive, self.ranks))
        self.client.finish()
        self.versions.append(version)
        self.annotations = {name: tensor.tolist() for name, tensor in published.annotations.items()}

    def load(self, weights, version: int) -> None:
        self.weights, self.annotations = [dict(weights)], {}
        self.versions.append(version)


@pytest.mark.parametrize("backend", ["gloo", "cuda_ipc"])
def test_the_processes_of_an_engine_receive_versions_from_the_trainer_themselves(
    tmp_path, monkeypatch, backend
):
    """Under cuda_ipc through a buffer in shared memory of the CPU, in pieces that are smaller than a bucket."""
    monkeypatch.setattr(weight_transfer, "BUCKET_BYTES", 80_000)
    monkeypatch.setattr(weight_transfer, "BUFFER_BYTES", 30_000)
    monkeypatch.setattr(WeightServer, "_backend", lambda server, receivers: backend)
    engine = Engine()
    with sender_and_receiver(tmp_path) as (sender, receiver):
        subscriber = make_subscriber(receiver, engine)
        for version in (1, 2):  # the second over the same process group
            weights = {name: tensor * version for name, tensor in WEIGHTS.items()}
            sender.write(version, [*weights.items(), ("strop.note", torch.tensor([0.1, -version]))])
            assert subscriber.load_newest(VersionWindow(version, version)) == version
            for found in engine.weights:
                assert all(torch.equal(found[name], tensor) for name, tensor in weights.items())
            assert engine.annotations == {"strop.note": [torch.tensor(0.1).item(), -version]}
        with pytest.raises(WeightTransferError, match="has no version 9 of the weights"):
            engine.client.request(receiver.published(2).trainer, 9, [None])
        with pytest.raises(VersionGone):
            receiver.published(9)
        sender.delete([1])
        sender.finish(2)
        assert receiver.published(2) is None, "it is read from the folder"
        assert subscriber.load_final(2) == 2
        engine.client.close()
    with pytest.raises(WeightTransferError, match="the trainer cannot be reached"):
        engine.client.request(lambda: Address.load(tmp_path / TRAINER_ADDRESS_FILE), 2, [None])
    assert engine.versions == [1, 2]


def test_a_version_that_does_not_arrive_is_requested_again(tmp_path, caplog):
    class Broken(Engine):
        failures = 2

        def load_published(self, published: PublishedVersion, version: int) -> None:
            if self.failures:
                self.failures -= 1
                raise WeightTransferError("half of the weights are missing")
            super().load_published(published, version)

    engine = Broken()
    with sender_and_receiver(tmp_path) as (sender, receiver):
        sender.write(1, WEIGHTS.items())
        assert make_subscriber(receiver, engine).load_newest(VersionWindow(1, 1)) == 1
        engine.failures = 10**9
        sender.write(2, WEIGHTS.items())
        subscriber = Subscriber(engine, FixedStyleConfig(), receiver, timeout_seconds=0.3, check=lambda: None)
        with pytest.raises(CheckpointError, match="for a complete transfer of version 2 of the weights"):
            subscriber.load_newest(VersionWindow(2, 2))
        engine.client.close()
    assert engine.versions == [1] and "half of the weights are missing" in caplog.text


@pytest.mark.slow
def test_an_explorer_killed_during_a_transfer_does_not_block_others(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(weight_transfer, "BUCKET_BYTES", 80_000)

    def said() -> list[str]:
        return [record.message for record in caplog.records if record.name == "strop.sync"]

    with sender_and_receiver(tmp_path) as (sender, receiver):
        sender.write(1, WEIGHTS.items())
        process = start(explore, tmp_path)
        process.join()
        assert process.exitcode == -signal.SIGKILL
        sampler = RecordingSampler()
        assert make_subscriber(receiver, sampler).load_newest(VersionWindow(1, 1)) == 1
        assert all(torch.equal(sampler.weights[name], tensor) for name, tensor in WEIGHTS.items())
        # The thread of the lost connection logs it when it is scheduled; closing the sender would end it before.
        wait_until(said, "the warning", timeout_seconds=600, interval_seconds=0.01)
        sender.write(2, WEIGHTS.items())  # raises errors of the server's threads
    assert said() == [
        "The connection to the explorer was lost during the transfer of version 1 of the weights; the explorer "
        "gets them again when it is back."
    ]


@pytest.mark.slow
def test_the_explorer_waits_for_a_trainer_killed_during_a_transfer(tmp_path, caplog):
    receiver = CollectiveReceiver(tmp_path, "127.0.0.1", CPU, lambda: None)
    sampler = RecordingSampler()
    processes = [start(train, tmp_path, BUCKETS - 1)]

    def again() -> None:
        processes[0].join()
        processes.append(start(train, tmp_path))

    thread = threading.Thread(target=again)
    thread.start()
    try:
        assert make_subscriber(receiver, sampler).load_newest(VersionWindow(1, 1)) == 1
    finally:
        thread.join()
        for process in processes:
            process.kill()
        receiver.close()
    assert processes[0].exitcode == -signal.SIGKILL
    assert all(torch.equal(sampler.weights[name], tensor) for name, tensor in WEIGHTS.items())
    said = [record.message for record in caplog.records if record.name == "strop.sync"]
    assert said == [
        "The connection to the trainer was lost during the transfer of version 1 of the weights; the "
        "explorer waits until the trainer is back."
    ]


@pytest.mark.slow
def test_a_stopped_trainer_times_out_and_stop_checks_continue(tmp_path, monkeypatch):
    monkeypatch.setattr(weight_transfer, "BROADCAST_TIMEOUT_SECONDS", 2.0)
    checks: list[None] = []
    process = start(train, tmp_path, 1, signal.SIGSTOP)
    receiver = CollectiveReceiver(tmp_path, "127.0.0.1", CPU, lambda: checks.append(None))
    try:
        while receiver.versions() != [1]:
            time.sleep(0.05)
        checks.clear()
        with pytest.raises(VersionGone):
            dict(receiver.read(1))
    finally:
        process.kill()
        process.join()
    assert len(checks) > 2, "stop checks are called during the wait"
    assert receiver.versions() == []


@pytest.mark.parametrize(
    ("backend", "expected"),
    [("nccl", "one GPU for the trainer and another"), ("cuda_ipc", "on one GPU; they have none, none")],
)
def test_a_backend_without_its_gpus_is_refused(backend, expected):
    server = WeightServer(VersionStore(), CollectiveSyncConfig(backend=backend), "127.0.0.1", CPU)
    with pytest.raises(PlacementError, match=expected):
        server._backend([None])


def test_errors_of_the_servers_threads_are_raised_in_the_trainer(tmp_path):
    with sender_and_receiver(tmp_path) as (sender, receiver):
        sender._store.put(1, "no buckets")  # type: ignore[arg-type]
        with pytest.raises(VersionGone):
            dict(receiver.read(1))
        with pytest.raises(AttributeError):
            sender.write(2, [])
    assert FolderVersionStore(tmp_path).versions() == []
