"""Resources of an asynchronous run, of Studio that watches it, and of `strop serve` that answers, over hours.

    .venv/bin/python benchmarks/soak_services.py [--minutes 120]

The three are the commands that users type, on a tiny model, in a temporary folder that is also their folder for
temporary files. The run has explorer and trainer as processes, a reward function that waits, evaluations and
checkpoints; each page of Studio and each kind of request is asked for every few seconds, malformed ones too.

Prints a row per command and interval, and fails if, between the second and the last quarter of the time, memory has
grown by more than 10 % (Studio keeps the run's metrics), or file descriptors, threads, processes or temporary files
have become more; also if a response or an exit code is not the expected one, or if something is left at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
import yaml

from strop.models.tiny import make_model
from strop.workers.waiting import wait_until

REWARD = """
import time

def vowels(completion):
    time.sleep(0.5)
    return sum(letter in "aeiou" for letter in completion) / 8
"""
TOLERANCE = 0.1
POOL_THREADS = 8
"""Threads that bounded pools may start late: those of Arrow, which reads Studio's rollout files with up to 8, and the
one that answers Studio's requests, which has as many as there ever were requests at the same time."""
KEY = "soak"
PAGES = (
    "/runs",
    "/runs/table",
    "/run",
    "/run/curves",
    "/run/configuration",
    "/run/logs",
    "/run/rollouts",
    "/compose",
)
"""Pages of Studio; those below `/run` are asked for with the run."""
_MESSAGES = [{"role": "user", "content": "max 1 2"}]
REQUESTS: tuple[tuple[str, dict[str, Any], int], ...] = (
    ("chat/completions", {"messages": _MESSAGES, "max_tokens": 8, "n": 2}, 200),
    ("chat/completions", {"messages": _MESSAGES, "max_tokens": 8, "stream": True}, 200),
    ("completions", {"prompt": "max 1 2", "max_tokens": 0, "echo": True, "logprobs": 1}, 200),
    ("chat/completions", {"messages": 5}, 400),
)
"""Requests to the endpoint: path, body without the model, and expected status."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Resources of a command and all its child processes."""

    minutes: float
    rss_mb: float
    descriptors: int
    threads: int
    processes: int
    files: int
    """Files in the command's folder for temporary files."""


@dataclass(slots=True)
class Service:
    """A command under test."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    temporary: Path
    usages: list[Usage] = field(default_factory=list)

    def measure(self, minutes: float) -> Usage:
        """Record the resources now."""
        if (code := self.process.poll()) is not None:
            raise SystemExit(
                f"{self.name} ended after {minutes:.1f} minutes with exit code {code}:\n{self.log.read_text()[-4000:]}"
            )
        parent = psutil.Process(self.process.pid)
        counts: Counter[str] = Counter()
        for member in (parent, *parent.children(recursive=True)):
            with suppress(psutil.NoSuchProcess), member.oneshot():
                counts["rss"] += member.memory_info().rss
                counts["descriptors"] += member.num_fds()
                counts["threads"] += member.num_threads()
                counts["processes"] += 1
        usage = Usage(
            minutes,
            counts["rss"] / 1e6,
            counts["descriptors"],
            counts["threads"],
            counts["processes"],
            sum(path.is_file() for path in self.temporary.rglob("*")),
        )
        self.usages.append(usage)
        return usage

    def growth(self) -> list[str]:
        """Growth between the second and the last quarter, a line for each resource."""
        if len(self.usages) < 4:
            raise SystemExit("Fewer than four measurements: take more minutes, or a shorter interval.")
        quarter = len(self.usages) // 4
        early, late = self.usages[quarter : 2 * quarter], self.usages[-quarter:]
        grown = []
        for name in ("rss_mb", "descriptors", "threads", "processes", "files"):
            before, after = (max(getattr(usage, name) for usage in part) for part in (early, late))
            if after > before * (1 + TOLERANCE if name == "rss_mb" else 1) + POOL_THREADS * (
                name == "threads"
            ):
                grown.append(f"{self.name}: {name} {before:.6g} -> {after:.6g}")
        return grown


@contextmanager
def start(name: str, folder: Path, *command: str) -> Iterator[Service]:
    """Start a command of Strop with a folder for temporary files; kills it at the end."""
    temporary, log = folder / f"tmp-{name}", folder / f"{name}.log"
    temporary.mkdir()
    environment = os.environ | {"TMPDIR": str(temporary), "OMP_NUM_THREADS": "1"}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "strop", *command],
            cwd=folder,
            env=environment | {"XDG_STATE_HOME": str(folder / "state")},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield Service(name, process, log, temporary)
    finally:
        process.kill()
        process.wait()


def found_in(log: Path, pattern: str) -> str:
    """Wait for a pattern in a command's output; returns its first group."""
    found: list[str] = []

    def look() -> bool:
        found[:] = re.findall(pattern, log.read_text())
        return bool(found)

    if not wait_until(look, f"'{pattern}' in {log.name}", timeout_seconds=600, interval_seconds=0.2):
        sys.exit(f"{log.name} has no '{pattern}':\n{log.read_text()}")
    return found[0]


def ask(url: str, key: str, body: dict[str, Any] | None = None) -> int:
    """Status of a request whose response is read to its end."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=600) as response:
            response.read()
            return int(response.status)
    except urllib.error.HTTPError as error:
        error.read()
        return error.code


def write_inputs(folder: Path) -> None:
    """The model, tasks, reward and run file."""
    make_model(folder / "model", ["max 1 2"], vocab_size=280, hidden_size=16, layers=1, heads=2)
    (folder / "tasks.jsonl").write_text(
        "".join(json.dumps({"prompt": f"max {n} {m}"}) + "\n" for n in range(10) for m in range(10))
    )
    (folder / "reward.py").write_text(REWARD)
    tasks = {"path": "tasks.jsonl", "answer": None}
    run = {
        "name": "soak",
        "output": "runs",
        "model": {"path": "model"},
        "data": {
            "train": tasks,
            "eval": [{**tasks, "name": "held-out", "limit_tasks": 2}],
            "max_prompt_tokens": 32,
            "max_response_tokens": 4,
        },
        "reward": {"functions": [{"function": "reward.py:vowels"}], "timeout_seconds": 3600},
        "algorithm": {"type": "grpo", "rollouts_per_task": 2, "importance_correction": {}},
        "synchronizer": {"style": {"type": "fixed", "max_lead": "1 steps"}},
        "trainer": {"duration": "1000000 steps", "tasks_per_step": 4},
        "checkpoint": {"every": "20 steps", "keep": 2},
        "evaluate": {"every": "20 steps"},
    }
    (folder / "run.yaml").write_text(yaml.safe_dump(run))


def poll(studio: tuple[str, str], run: str, endpoint: str) -> Counter[str]:
    """Ask for each page and send each request once; returns the unexpected statuses.

    `run` is Studio's name of the run.
    """
    wrong: Counter[str] = Counter()
    address, token = studio
    for page in PAGES:
        query = f"?run={quote(run)}" if page.startswith("/run/") or page == "/run" else ""
        if (status := ask(f"{address}{page}{query}", token)) != 200:
            wrong[f"{page}: {status}"] += 1
    if (status := ask(f"{address}/runs", "wrong")) != 403:
        wrong[f"/runs with a wrong token: {status}"] += 1
    for path, body, expected in REQUESTS:
        if (status := ask(f"{endpoint}/{path}", KEY, {"model": "model", **body})) != expected:
            wrong[f"{path} {sorted(body)}: {status}"] += 1
    return wrong


def soak(folder: Path, minutes: float, pause: float, interval: float) -> list[str]:
    """Run the three commands for this time; returns what is wrong."""
    write_inputs(folder)
    with ExitStack() as stack:
        run = stack.enter_context(start("train", folder, "train", "run.yaml"))
        studio = stack.enter_context(start("studio", folder, "studio", "runs", "--port", "0"))
        served = stack.enter_context(start("serve", folder, "serve", "model", "--port", "0", "--token", KEY))
        address, token = found_in(studio.log, r"Studio: (\S+)").split("?token=")
        endpoint = found_in(served.log, r" at (http\S+) as")
        found_in(run.log, r"(step +1)")
        metrics = next(iter(folder.glob("runs/**/metrics.jsonl")))
        name = str(metrics.parent.relative_to(folder / "runs"))
        services = (run, studio, served)
        wrong: Counter[str] = Counter()
        began, next_measure = time.monotonic(), 0.0
        print("| minutes | command | RSS, MB | file descriptors | threads | processes | temporary files |")
        print("| ---: | --- | ---: | ---: | ---: | ---: | ---: |")
        while (passed := (time.monotonic() - began) / 60) < minutes:
            try:
                wrong += poll((address.rstrip("/"), token), name, endpoint)
            except urllib.error.URLError:
                for service in services:
                    service.measure(passed)  # says which command has ended
                raise
            if passed >= next_measure:
                next_measure += interval
                for service in services:
                    usage = service.measure(passed)
                    print(
                        f"| {passed:.0f} | {service.name} | {usage.rss_mb:.1f} | {usage.descriptors} "
                        f"| {usage.threads} | {usage.processes} | {usage.files} |",
                        flush=True,
                    )
            time.sleep(pause)
        print(f"\n{len(metrics.read_text().splitlines())} rows of metrics.", flush=True)
        problems = [line for service in services for line in service.growth()]
        problems += [f"{line} ({count} times)" for line, count in wrong.items()]
        problems += [line for service in services for line in end(service)]
        problems += [
            f"{service.name} printed a traceback:\n{service.log.read_text()[-4000:]}"
            for service in services
            if "Traceback" in service.log.read_text()
        ]
    return problems


def end(service: Service) -> list[str]:
    """Stop a command with SIGTERM; returns what is left of it, and an exit code of another kind than a stop."""
    children = psutil.Process(service.process.pid).children(recursive=True)
    service.process.send_signal(signal.SIGTERM)
    code = service.process.wait(120)
    _, alive = psutil.wait_procs(children, timeout=30)
    files = [
        str(path.relative_to(service.temporary)) for path in service.temporary.rglob("*") if path.is_file()
    ]
    left = [f"{service.name} left the process {' '.join(process.cmdline())}" for process in alive]
    left += [f"{service.name} left the temporary file {name}" for name in files]
    if code not in (0, 128 + signal.SIGTERM):
        left.append(f"{service.name} ended with exit code {code}")
    return left


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--pause", type=float, default=5, help="seconds between requests to all pages")
    parser.add_argument("--interval", type=float, default=5, help="minutes between two measurements")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        problems = soak(Path(name), options.minutes, options.pause, options.interval)
    if problems:
        sys.exit("\n".join(problems))


if __name__ == "__main__":
    main()
