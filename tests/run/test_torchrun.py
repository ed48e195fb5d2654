"""Runs whose ranks torchrun, or another launcher with its environment variables, has started."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

import strop
from strop.errors import ConfigError, PlacementError, TrainingError
from strop.run.distributed.torchrun import ADDRESS_FILE, require_torchrun_ranks
from strop.training.backend import on_available_ranks
from strop.workers.network import LOOPBACK
from strop.workers.torchrun import torchrun_process
from tests.files import digest

from .command import Command, StropCommand
from .network_hosts import Host, two_hosts
from .test_distributed import rows_of

VARIABLES = {
    "RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
}


def test_the_process_is_known_by_its_environment():
    found = torchrun_process(VARIABLES | {"LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_USE_AGENT_STORE": "True"})
    assert found is not None
    assert (found.rank, found.ranks, found.local_rank, found.local_ranks) == (1, 4, 1, 2)
    assert found.launcher_has_store
    assert torchrun_process({}) is None
    assert torchrun_process(VARIABLES | {"WORLD_SIZE": "1", "RANK": "0"}) is None
    with pytest.raises(ConfigError, match=r"WORLD_SIZE=many.*must be whole numbers"):
        torchrun_process(VARIABLES | {"WORLD_SIZE": "many"})


def fsdp2(ranks: int, **more) -> dict:
    return {"type": "fsdp2", "ranks": ranks, "device": "cpu", **more}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, r"started 4 processes \(WORLD_SIZE\), and trainer.engine.ranks is 1.*\{type: fsdp2, ranks: 4\}"),
        ({"trainer__engine": fsdp2(2)}, r"trainer.engine.ranks is 2\. .*or start 2 processes"),
        (
            {"trainer__engine": fsdp2(8), "trainer__elastic": {"min_ranks": 6}},
            r"ranks is 8, and trainer.elastic.min_ranks 6",
        ),
        ({"trainer__engine": fsdp2(4), "synchronizer": "checkpoint"}, "Write synchronizer: memory"),
        (
            {"trainer__engine": fsdp2(4), "cluster": "ray", "synchronizer": "checkpoint"},
            "cluster: ray starts",
        ),
    ],
)
def test_a_run_with_other_ranks_is_refused(values, changes, message):
    run = strop.load(values(**changes)).run
    with pytest.raises(PlacementError, match=message):
        require_torchrun_ranks(run, torchrun_process(VARIABLES))


def test_a_run_with_these_ranks_is_accepted(values):
    for changes in ({"trainer__engine": fsdp2(4)}, {"trainer__engine": fsdp2(8), "trainer__elastic": {}}):
        require_torchrun_ranks(strop.load(values(**changes)).run, torchrun_process(VARIABLES))


@pytest.mark.parametrize(
    ("elastic", "engine", "left", "expected"),
    [
        ({}, fsdp2(4), None, 4),
        (None, fsdp2(4), 4, 4),
        ({}, fsdp2(4), 3, 3),
        ({}, fsdp2(8, sequence_parallel=2), 5, 4),
        ({}, fsdp2(8, tensor_parallel=2, replicate=2), 7, 4),
        (None, fsdp2(4), 3, "3 of the 4 ranks"),
        ({"min_ranks": 3}, fsdp2(4), 2, "2 of 4 ranks are left, and trainer.elastic.min_ranks is 3"),
        ({}, fsdp2(4, sequence_parallel=4), 3, "of which 0 can be used"),
    ],
)
def test_the_ranks_that_are_left(values, elastic, engine, left, expected):
    run = strop.load(values(trainer__engine=engine, trainer__elastic=elastic)).run
    if isinstance(expected, str):
        with pytest.raises(TrainingError, match=expected):
            on_available_ranks(run, left)
    else:
        assert on_available_ranks(run, left).trainer.engine.ranks == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"trainer__elastic": {}}, "elastic is set, and engine is local"),
        (
            {"trainer__elastic": {"min_ranks": 3}, "trainer__engine": fsdp2(2)},
            r"min_ranks \(3\) is more than engine.ranks \(2\)",
        ),
    ],
)
def test_elastic_values_that_do_not_fit_are_refused(values, changes, message):
    with pytest.raises(ConfigError, match=message):
        strop.load(values(**changes))


@pytest.mark.slow
def test_processes_of_a_launcher_train_what_own_processes_train(values, tmp_path):
    reference = strop.train(strop.load(values(name="one", trainer__engine=fsdp2(2))))
    run_file = tmp_path / "run.yaml"
    run_file.write_text(yaml.safe_dump(values(name="two", trainer__engine=fsdp2(2))))
    # Below the ports that Linux gives to connections, and another one for each process that runs tests.
    address = {"MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(20_000 + os.getpid() % 10_000)}
    processes = [
        StropCommand(
            tmp_path / f"{rank}.txt",
            "train",
            str(run_file),
            **address,
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE="2",
        )
        for rank in range(2)
    ]
    first, second = (process.finish() for process in processes)
    assert "step" in first and "step" not in second, "the first process alone prints"
    folder = tmp_path / "runs" / "strop" / "two"
    assert rows_of(folder) == rows_of(reference.folder)
    assert digest(folder / "model" / "model.safetensors") == digest(reference.model / "model.safetensors")
    assert (folder / ADDRESS_FILE).stat().st_mode & 0o777 == 0o600


@contextmanager
def torchrun_on(hosts: Sequence[Host], run: dict, tmp_path: Path, *wrapper: str) -> Iterator[list[Command]]:
    """torchrun on both hosts, on the second one inside a wrapper."""
    run_file = tmp_path / "run.yaml"
    run_file.write_text(yaml.safe_dump(run))
    address = ("--master-addr", hosts[0].address, "--master-port", "29500")
    commands: list[Command] = []
    try:
        for number, host in enumerate(hosts):
            size = ("--nnodes", "2", "--node-rank", str(number), "--nproc-per-node", "1")
            launcher = (sys.executable, "-m", "torch.distributed.run", *size, *address)
            inside = (*host.enter, *(wrapper if number else ()))
            train = ("-m", "strop", "train", str(run_file))
            commands.append(Command(tmp_path / f"{number}.txt", *inside, *launcher, *train))
        yield commands
    finally:
        for command in commands:
            command.kill()


@pytest.mark.nightly
def test_a_lost_host_is_named_and_the_run_goes_on_without_it(values, tmp_path):
    network = {"node_timeout_seconds": 10}
    run = values(
        trainer__engine=fsdp2(2, network=network),
        trainer__elastic={"wait_seconds": 5},
        trainer__duration="200 steps",
        evaluate={"every": "never", "at_start": False},
    )
    with two_hosts() as hosts, torchrun_on(hosts, run, tmp_path) as (first, _):
        first.wait_for("step   6/200")
        hosts[1].cut_cable()
        cut = time.monotonic()
        named = first.wait_for("Rank 1 of the trainer ended with its node", 60)
        assert time.monotonic() - cut < 30
        assert "The run continues from its last checkpoint (restart 1 of at most 3)" in named
        assert "Finished 200 steps" in first.wait_for("Finished")


@pytest.mark.nightly
def test_a_folder_that_hosts_do_not_share_is_refused(values, tmp_path):
    hidden = tmp_path / "runs"
    hidden.mkdir()
    mount = ("unshare", "-m", "sh", "-c", f'mount -t tmpfs none {hidden} && exec "$@"', "sh")
    run = values(trainer__engine=fsdp2(2))
    with two_hosts() as hosts, torchrun_on(hosts, run, tmp_path, *mount) as commands:
        for command in commands:
            text = command.wait_for("does not see the file")
            assert "`output` must be a folder on storage that all nodes share" in text
