"""How long new weights take from a trainer to an explorer, through a folder and from memory to memory.

    python benchmarks/sync.py [--versions 5]

A model of 50 million parameters in float32 (200 MB), two processes of this machine. Prints a table: the
trainer's time to publish a version, which its step waits for, and the explorer's to give it to its sampler.
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

from strop.config.schema.model import Model
from strop.config.schema.synchronizer import CheckpointSync, CollectiveSync
from strop.models.load import load_model
from strop.models.lora import merged_weights
from strop.models.tiny import make_model
from strop.sync.publish import Publisher, Subscriber
from strop.sync.style import Window
from strop.sync.table import ApartSync, open_inbox, open_outbox

CPU = torch.device("cpu")
LAST = 1000
WAYS: dict[str, ApartSync] = {
    "`checkpoint`, on the disk": CheckpointSync(),
    "`checkpoint`, in `/dev/shm`": CheckpointSync(folder="/dev/shm/strop-benchmark-sync"),
    "`collective`, gloo": CollectiveSync(),
}


class Engine:
    """As much of a training engine as publishes."""

    def __init__(self, folder: Path) -> None:
        self.model = load_model(Model(path=str(folder / "model")), device=CPU)

    def iter_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        return merged_weights(self.model)


class Sampler:
    """As much of a sampler as takes weights: into memory of its own."""

    def __init__(self, folder: Path) -> None:
        model = load_model(Model(path=str(folder / "model")), device=CPU, trainable=False)
        self.weights = dict(merged_weights(model))

    def load(self, weights: Iterator[tuple[str, torch.Tensor]], version: int) -> None:
        for name, tensor in weights:
            self.weights[name].copy_(tensor)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--versions", type=int, default=5)
    parser.add_argument("--trainer", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.trainer:
        publish(Path(args.trainer[0]), args.trainer[1])
        return
    print("| weights go by | publish, seconds | load, seconds |")
    print("| --- | ---: | ---: |")
    with tempfile.TemporaryDirectory() as folder:
        size = {"vocab_size": 8192, "hidden_size": 512, "layers": 16, "heads": 8, "kv_heads": 4}
        make_model(Path(folder) / "model", ["a b"], **size)
        for way in WAYS:
            published, loaded = measure(Path(folder), way, args.versions)
            print(f"| {way} | {published:.2f} | {loaded:.2f} |", flush=True)


def measure(folder: Path, way: str, versions: int) -> tuple[float, float]:
    """Medians over the versions, the first left out."""
    sampler = Sampler(folder)
    process = subprocess.Popen(
        [sys.executable, __file__, "--trainer", str(folder), way],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None
    inbox = open_inbox(WAYS[way], folder, host="127.0.0.1", device=CPU, check=lambda: None)
    subscriber = Subscriber(
        sampler,  # type: ignore[arg-type]  # as much of one as is needed
        WAYS[way].style,
        inbox,
        timeout_seconds=60.0,
        check=lambda: None,
    )
    published, loaded = [], []
    for version in range(1, versions + 2):
        print(version, file=process.stdin, flush=True)
        published.append(float(process.stdout.readline()))
        began = time.perf_counter()
        subscriber.take(Window(version, version))
        loaded.append(time.perf_counter() - began)
    process.communicate()
    inbox.close()
    return median(published[1:]), median(loaded[1:])


def publish(folder: Path, way: str) -> None:
    """The trainer: a version for each number that it is told."""
    engine, section = Engine(folder), WAYS[way]
    outbox = open_outbox(section, folder, host="127.0.0.1", device=CPU, checkpoint=None)
    publisher = Publisher(engine, section.style, outbox)  # type: ignore[arg-type]  # the same
    publisher.begin()
    for line in sys.stdin:
        began = time.perf_counter()
        publisher.after(int(line), LAST)
        print(time.perf_counter() - began, flush=True)
    outbox.delete(outbox.all())
    outbox.close()


if __name__ == "__main__":
    main()
