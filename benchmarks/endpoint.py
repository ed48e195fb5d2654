"""Load on the OpenAI endpoint: many clients at once, some of which send malformed requests.

    python benchmarks/endpoint.py
    python benchmarks/endpoint.py --clients 50 --seconds 5

Each client sends requests one after the other, in turn a valid one, a stream, a malformed one, and one with a wrong
key; half of the clients open a connection for each request. A tiny model answers. The script fails on any unexpected
response, and if threads or open files are left afterwards.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import psutil
import torch

from strop.config.schema.rollout import AuxiliaryModelConfig
from strop.inference.auxiliary_model import load_auxiliary_model
from strop.inference.endpoint.server import EndpointAccess, EndpointServer
from strop.models.tiny import make_model
from strop.workers.waiting import wait_until

MESSAGES = [{"role": "user", "content": "two and two"}]
GOOD: dict[str, Any] = {"model": "tiny", "messages": MESSAGES, "max_tokens": 4}


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of request, and the status that it must get."""

    name: str
    status: int
    body: dict[str, Any]
    has_key: bool = True


CASES: Sequence[Case] = (
    Case("valid", 200, GOOD),
    Case("streamed", 200, GOOD | {"stream": True}),
    Case("malformed", 400, GOOD | {"messages": 5}),
    Case("wrong key", 401, GOOD, has_key=False),
)


@dataclass(slots=True)
class Load:
    """The measured responses."""

    statuses: Counter[tuple[str, int]] = field(default_factory=Counter)
    """Number of responses by case and status."""
    seconds: dict[str, list[float]] = field(default_factory=lambda: {case.name: [] for case in CASES})
    """Seconds of each response, by case."""
    wall_seconds: float = 0.0
    left_threads: int = 0
    left_files: int = 0

    @property
    def unexpected(self) -> Counter[tuple[str, int]]:
        """Responses with another status than that of their case."""
        expected = {(case.name, case.status) for case in CASES}
        return Counter({key: count for key, count in self.statuses.items() if key not in expected})


@contextmanager
def open_endpoint(folder: Path) -> Iterator[EndpointAccess]:
    """An endpoint with a tiny model, which is made in a new folder."""
    make_model(folder, ["two and two is four"], vocab_size=320)
    section = AuxiliaryModelConfig(name="tiny", path=str(folder))
    with (
        closing(load_auxiliary_model(section, torch.device("cpu"), seed=1)) as model,
        closing(EndpointServer()) as endpoint,
        endpoint.register({"tiny": model}) as access,
    ):
        yield access


def measure(clients: int, seconds: float, folder: Path) -> Load:
    """Run the clients for some time, at least two requests each, and close the endpoint."""
    process, load = psutil.Process(), Load()
    with open_endpoint(folder) as access:  # loads the libraries, which open files of their own
        asyncio.run(_run_clients(access, 4, 0.0, Load()))
    threads, files = threading.active_count(), process.num_fds()
    with open_endpoint(folder.with_name("again")) as access:
        began = time.perf_counter()
        asyncio.run(_run_clients(access, clients, seconds, load))
        load.wall_seconds = time.perf_counter() - began
    wait_until(
        lambda: threading.active_count() <= threads and process.num_fds() <= files,
        "the connections to be closed",
        timeout_seconds=30,
        interval_seconds=0.1,
    )
    load.left_threads = max(0, threading.active_count() - threads)
    load.left_files = max(0, process.num_fds() - files)
    return load


async def _run_clients(access: EndpointAccess, clients: int, seconds: float, load: Load) -> None:
    end = time.monotonic() + seconds
    await asyncio.gather(*(_client(access, number, end, load) for number in range(clients)))


async def _client(access: EndpointAccess, number: int, end: float, load: Load) -> None:
    connector = aiohttp.TCPConnector(force_close=number % 2 == 0)  # half of the clients reconnect each time
    async with aiohttp.ClientSession(access.url + "/", connector=connector) as session:
        for request in range(1_000_000):
            if request >= 2 and time.monotonic() >= end:
                return
            case = CASES[(number + request) % len(CASES)]
            key = access.api_key if case.has_key else "strop-guess"
            began = time.perf_counter()
            async with session.post(
                "chat/completions", json=case.body, headers={"Authorization": f"Bearer {key}"}
            ) as response:
                await response.read()
            load.seconds[case.name].append(time.perf_counter() - began)
            load.statuses[case.name, response.status] += 1


def print_table(load: Load, clients: int) -> None:
    """Print a row for each case."""
    total = sum(load.statuses.values())
    print(f"{clients} clients for {load.wall_seconds:.0f} s: {total:,} requests, ", end="")
    print(f"{total / load.wall_seconds:,.0f} per second; no other status, no threads or files left.\n")
    print("| requests | status | number | median ms | 99th percentile ms | maximum ms |")
    print("| --- | --- | --- | --- | --- | --- |")
    for case in CASES:
        times = 1000 * np.array(load.seconds[case.name])
        median, high = np.percentile(times, [50, 99])
        print(
            f"| {case.name} | {case.status} | {len(times):,} | {median:,.0f} | {high:,.0f} | {times.max():,.0f} |"
        )


def main() -> None:
    """Measure, and exit with a message if a response is unexpected or something is left."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60.0)
    arguments = parser.parse_args()
    logging.disable(logging.INFO)
    with tempfile.TemporaryDirectory() as name:
        load = measure(arguments.clients, arguments.seconds, Path(name) / "model")
    if load.unexpected or load.left_threads or load.left_files:
        raise SystemExit(
            f"unexpected responses: {dict(load.unexpected)}; threads left: {load.left_threads}; "
            f"open files left: {load.left_files}"
        )
    print_table(load, arguments.clients)


if __name__ == "__main__":
    main()
