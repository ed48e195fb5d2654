"""Trinity's cluster keys: a Ray cluster where the file asks for one, and this machine with --here."""

from __future__ import annotations

from pathlib import Path

import pytest

from strop.config.dialects.lines import draft_of
from strop.config.dialects.read import read_elsewhere
from strop.config.dialects.trinity import LEDGER
from strop.config.dialects.write import write_dialect
from strop.config.schema.buffer import QueueBuffer
from strop.config.schema.cluster import LocalCluster, RayCluster
from strop.config.schema.synchronizer import MemorySync
from strop.config.schema.trainer import Fsdp2Engine, SingleEngine
from strop.errors import ConfigError, PlacementError

from .trinity_file import read

NODES = "cluster={node_num: 2, gpu_per_node: 4}"
ASKING = {
    "nodes": (NODES, RayCluster(address="auto", nodes=2, gpus_per_node=4), 7),
    "gpus": ("cluster.gpu_per_node=8", RayCluster(gpus_per_node=8), 7),
    "two gpus": ("cluster.gpu_per_node=2", RayCluster(gpus_per_node=2), 1),
    "nodes without gpus": ("cluster={node_num: 3, gpu_per_node: 0}", RayCluster(address="auto", nodes=3), 1),
    "namespace": ("ray_namespace=team", RayCluster(namespace="team", gpus_per_node=8), 7),
    "timeline": ("monitor.enable_ray_timeline=true", RayCluster(timeline=True, gpus_per_node=8), 7),
    "logs": ("log.group_by_node=True", RayCluster(logs_by_node=True, gpus_per_node=8), 7),
}


@pytest.fixture(autouse=True)
def _no_cluster_of_its_own(trinity_file: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


@pytest.mark.parametrize(("written", "cluster", "ranks"), ASKING.values(), ids=ASKING)
def test_a_file_that_asks_for_a_cluster_runs_on_ray(written: str, cluster: RayCluster, ranks: int) -> None:
    run = read(written, here=False).run
    assert run.cluster == cluster
    assert run.trainer.engine == (Fsdp2Engine(ranks=ranks) if ranks > 1 else SingleEngine())
    assert not isinstance(run.synchronizer, MemorySync) and isinstance(run.buffer, QueueBuffer)


@pytest.mark.parametrize(("written", "cluster", "ranks"), ASKING.values(), ids=ASKING)
def test_here_is_one_process_and_says_what_it_sets_aside(
    written: str, cluster: RayCluster, ranks: int
) -> None:
    loaded = read(written)
    assert loaded.run == read().run
    assert isinstance(loaded.run.cluster, LocalCluster) and isinstance(loaded.run.buffer, QueueBuffer)
    keys = {item.key for item in loaded.set_aside}
    assert keys and keys <= {written.split("=")[0], "cluster.node_num", "cluster.gpu_per_node"}


@pytest.mark.parametrize(("written", "cluster", "ranks"), ASKING.values(), ids=ASKING)
def test_there_and_back(written: str, cluster: RayCluster, ranks: int) -> None:
    assert write_dialect(LEDGER, read(written, here=False).run).unsaid == ()


def test_one_machine_with_a_gpu_or_without_is_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = read("cluster={node_num: 1, gpu_per_node: 0}", "explorer.name=explorer", here=False)
    assert (cpu.run, cpu.notes) == (read().run, ())
    with pytest.raises(PlacementError, match=r"--here.*cluster\.gpu_per_node=1"):
        read("cluster.gpu_per_node=1", here=False)
    monkeypatch.setattr("strop.config.dialects.verl.trainer.cuda_devices", lambda: 8)
    run = read("cluster={node_num: 1, gpu_per_node: 1}", here=False).run
    assert isinstance(run.cluster, LocalCluster) and isinstance(run.synchronizer, MemorySync)


def test_the_buffer_is_an_actor_too() -> None:
    run = read(NODES, "+buffer.trainer_input.experience_buffer={name: b, path: q.db}", here=False).run
    assert run.buffer == QueueBuffer(name="b", backup="q.db")
    assert write_dialect(LEDGER, run).unsaid == ()


def test_names_are_actors_on_a_cluster_and_inactive_elsewhere() -> None:
    names = ("explorer.name=e", "trainer.name=t")
    assert read(*names, NODES, here=False).run.cluster == RayCluster(
        address="auto", nodes=2, gpus_per_node=4, explorer="e", trainer="t"
    )
    notes = read(*names, here=False).notes
    assert [note.partition(": ")[2] for note in notes] == [
        "inactive, because it names an actor, and without a cluster there are none."
    ] * 2
    with pytest.raises(ConfigError, match="both named 'e'"):
        read("explorer.name=e", "trainer.name=e", NODES, here=False)


def test_the_rollout_engines_gpus_are_not_the_trainers() -> None:
    def ranks(engines: int) -> int:
        overrides = (NODES, f"explorer.rollout_model.engine_num={engines}")
        return read_elsewhere(LEDGER, draft_of(LEDGER, overrides, Path("t.yaml"))).trainer.engine.ranks

    assert ranks(4) == 4
    with pytest.raises(ConfigError, match=r"engine_num 8 x .* all of the cluster's 8 GPUs"):
        ranks(8)


def test_a_cluster_that_ray_names_is_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:6379")
    assert read("ray_namespace=n", here=False).run.cluster.address == "auto"


@pytest.mark.parametrize("mode", ["train", "explore"])
def test_one_half_of_a_run_is_placed_by_who_starts_it(mode: str) -> None:
    with pytest.raises(PlacementError, match=r"--here.*cluster\.node_num=2"):
        read(f"mode={mode}", "cluster.node_num=2", here=False)
