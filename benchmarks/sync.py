"""Transfer time of weights from a trainer to an explorer, by each transport between processes.

    python benchmarks/sync.py [--versions 5]

The model has 46 million parameters in float32 (185 MB); trainer and explorer are two processes of this machine.
Prints a table of the time in which the trainer publishes a version, which is part of its step, and of the time in
which the explorer loads it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import torch

from strop.config.schema.buffer import CheckpointSyncConfig, CollectiveSyncConfig
from strop.config.schema.model import ModelConfig
from strop.models.loading import load_model
from strop.models.lora import merged_weights
from strop.models.tiny import make_model
from strop.sync.factory import CrossProcessSync, open_weight_receiver, open_weight_sender
from strop.sync.publish import RemotePublisher
from strop.sync.staleness_policy import VersionWindow
from strop.sync.subscribe import Subscriber

CPU = torch.device("cpu")
LAST_STEP = 1000
"""Last step of the run, which the measurement does not reach."""
TRANSPORTS: dict[str, CrossProcessSync] = {
    "`checkpoint`, on the disk": CheckpointSyncConfig(),
    "`checkpoint`, in `/dev/shm`": CheckpointSyncConfig(folder="/dev/shm/strop-benchmark-sync"),
    "`collective`, gloo": CollectiveSyncConfig(),
}


class Engine:
    """The methods of a training engine that a publisher calls."""

    def __init__(self, folder: Path) -> None:
        self.model = load_model(ModelConfig(path=str(folder / "model")), device=CPU)

    def iter_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Return the weights, as `TrainingEngine.iter_weights` does."""
        return merged_weights(self.model)


class Sampler:
    """The methods of an inference engine that a subscriber calls; it copies the weights into its own memory."""

    def __init__(self, folder: Path) -> None:
        model = load_model(ModelConfig(path=str(folder / "model")), device=CPU, trainable=False)
        self.weights = dict(merged_weights(model))

    def load(self, weights: Iterator[tuple[str, torch.Tensor]], version: int) -> None:
        """Copy the weights, as `InferenceEngine.load` does."""
        for name, tensor in weights:
            self.weights[name].copy_(tensor)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--versions", type=int, default=5)
    parser.add_argument("--trainer", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.trainer:
        publish(Path(args.trainer[0]), args.trainer[1])
        return
    print("| transport | publish, seconds | load, seconds |")
    print("| --- | ---: | ---: |")
    with tempfile.TemporaryDirectory() as folder:
        make_model(
            Path(folder) / "model",
            ["a b"],
            vocab_size=8192,
            hidden_size=512,
            layers=16,
            heads=8,
            kv_heads=4,
        )
        for transport in TRANSPORTS:
            published, loaded = measure(Path(folder), transport, args.versions)
            print(f"| {transport} | {published:.2f} | {loaded:.2f} |", flush=True)


def measure(folder: Path, transport: str, versions: int) -> tuple[float, float]:
    """Return the median seconds to publish and to load a version, without the first version."""
    section = TRANSPORTS[transport]
    sampler = Sampler(folder)
    process = subprocess.Popen(
        [sys.executable, __file__, "--trainer", str(folder), transport],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None
    receiver = open_weight_receiver(section, folder, host="127.0.0.1", device=CPU, check=lambda: None)
    subscriber = Subscriber(
        sampler,  # type: ignore[arg-type]  # has only the methods that are called
        section.style,
        receiver,
        timeout_seconds=60.0,
        check=lambda: None,
    )
    published, loaded = [], []
    for version in range(1, versions + 2):
        print(version, file=process.stdin, flush=True)
        published.append(float(process.stdout.readline()))
        began = time.perf_counter()
        subscriber.load_newest(VersionWindow(version, version))
        loaded.append(time.perf_counter() - began)
    process.communicate()
    receiver.close()
    return median(published[1:]), median(loaded[1:])


def publish(folder: Path, transport: str) -> None:
    """Run the trainer: publish a version for each number that arrives on standard input."""
    engine, section = Engine(folder), TRANSPORTS[transport]
    sender = open_weight_sender(section, folder, host="127.0.0.1", device=CPU, checkpoint=None)
    publisher = RemotePublisher(engine, section.style, sender, last_step=LAST_STEP)  # type: ignore[arg-type]
    publisher.start(0, 0)
    for line in sys.stdin:
        began = time.perf_counter()
        publisher.publish(int(line))
        print(time.perf_counter() - began, flush=True)
    sender.delete(sender.versions())
    sender.close()


if __name__ == "__main__":
    main()
