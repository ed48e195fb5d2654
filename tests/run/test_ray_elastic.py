"""A run on Ray that loses a node: the node and its ranks are named, and under `trainer.elastic` the run continues."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

import pytest
import yaml

import strop
from tests.cases import nightly

from .command import Command
from .network_hosts import Host, two_hosts
from .test_distributed import rows_of
from .test_launch import start, wait_for
from .test_ranks import close, on
from .test_ray import finish

pytest.importorskip("ray")
pytest_plugins = ["tests.run.clusters"]
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray")]


LENGTH = {"trainer__duration": "8 steps", "checkpoint__every": "2 steps"}


@pytest.mark.parametrize(
    ("cpus", "ranks", "lost", "named"),
    [
        ((1, 1, 1), 2, "trainer-rank-1", "Rank 1 of the trainer"),
        *nightly(((3, 2), 4, "trainer", "The trainer's actor")),
    ],
    ids=["a rank", "the trainer with two of its other ranks"],
)
def test_the_ranks_that_are_left_continue_from_the_last_checkpoint(
    values, tmp_path, head, cpus, ranks, lost, named
):
    """The node of one actor is lost after step 3, for good, and one rank is left."""
    elastic = {"trainer__engine": on(ranks), "trainer__elastic": {"wait_seconds": 3}}
    folder = tmp_path / "runs" / "strop" / "less"
    with head.added(*cpus):
        process = start(tmp_path, values(name="less", cluster=head.section(), **elastic, **LENGTH))
        wait_for(folder / "metrics.jsonl", lines=4, process=process)
        with head.joined("less"):
            head.remove(head.node_of(lost))
        output = finish(process)
    said = rf"{named} ended with its node \S+ \(\S+\), whose raylet( has ended\. .* It is restarted)?"
    assert re.search(said, output) and "It is restarted" in output, output
    reference = strop.train(strop.load(values(name="one", **LENGTH)))
    close(rows_of(folder), rows_of(reference.folder))
    last = folder / "checkpoints" / "step-000008"
    assert (last / "weights.safetensors").exists(), f"one rank has written it: {sorted(last.iterdir())}"


TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0123456789abcdef" * 2}
"""Ray's token of a cluster that lives as long as its test."""


def ray_on(host: Host, log: Path, *arguments: str) -> Command:
    """Ray's node of a host. One that joins another has a `/tmp/ray` of its own."""
    hide = ("unshare", "-m", "sh", "-c", 'mount -t tmpfs none /tmp/ray && exec "$@"', "sh")
    inside = (*host.enter, *(() if "--head" in arguments else hide))
    start = ("start", f"--node-ip-address={host.address}", "--block", "--disable-usage-stats", *arguments)
    return Command(log, *inside, sys.executable, "-m", "ray.scripts.scripts", *start, **TOKEN)


@pytest.mark.nightly
def test_a_host_that_falls_silent_is_named_and_the_run_continues(values, tmp_path):
    """Each host has two of four ranks. Ray itself notices the cut cable after a minute."""
    with two_hosts() as (first, second):
        for host, other in ((first, second), (second, first)):
            host.ip("route", "add", "default", "via", other.address, "dev", host.device)
        address = f"{first.address}:6379"
        run = values(
            cluster={"type": "ray", "address": address},
            trainer__engine=on(4) | {"sequence_parallel": 2, "network": {"node_timeout_seconds": 10}},
            trainer__elastic={"wait_seconds": 5},
            trainer__duration="200 steps",
            checkpoint__every="5 steps",
            evaluate={"every": "never", "at_start": False},
        )
        run_file = tmp_path / "run.yaml"
        run_file.write_text(yaml.safe_dump(run))
        commands = [ray_on(first, tmp_path / "a.txt", "--head", "--num-cpus=3", "--include-dashboard=false")]
        try:
            commands[0].wait_for("Ray runtime started", 120)
            commands.append(ray_on(second, tmp_path / "b.txt", f"--address={address}", "--num-cpus=2"))
            commands[1].wait_for("Ray runtime started", 120)
            train = (sys.executable, "-m", "strop", "train", str(run_file))
            commands.append(Command(tmp_path / "run.txt", *first.enter, *train, **TOKEN))
            commands[2].wait_for("trainer  | step   8/200", 180)
            second.cut_cable()
            cut = time.monotonic()
            named = commands[2].wait_for("which has given no sign of life for 10 s", 60)
            seconds = time.monotonic() - cut
            print(f"named after {seconds:.0f} s: {named.splitlines()[-1]}")
            assert seconds < 30
            assert "Finished 200 steps" in commands[2].wait_for("Finished", 240)
        finally:
            for command in reversed(commands):
                command.kill()
