"""Trinity's cluster keys: a Ray cluster where the file requests one, and this machine with --here."""

from __future__ import annotations

from pathlib import Path

import pytest

from strop.compat.ledger.reader import config_tree_from_overrides, read_ignoring_placement
from strop.compat.ledger.writer import write_dialect
from strop.compat.trinity.reader import LEDGER
from strop.config.schema.buffer import MemorySyncConfig, QueueBufferConfig
from strop.config.schema.run import LocalClusterConfig, RayClusterConfig
from strop.config.schema.trainer import Fsdp2EngineConfig, LocalEngineConfig
from strop.errors import ConfigError, PlacementError

from .trinity_file import read

NODES = "cluster={node_num: 2, gpu_per_node: 4}"
CLUSTER_REQUESTS = {
    "nodes": (NODES, RayClusterConfig(address="auto", nodes=2, gpus_per_node=4), 7),
    "gpus": ("cluster.gpu_per_node=8", RayClusterConfig(gpus_per_node=8), 7),
    "two gpus": ("cluster.gpu_per_node=2", RayClusterConfig(gpus_per_node=2), 1),
    "nodes without gpus": (
        "cluster={node_num: 3, gpu_per_node: 0}",
        RayClusterConfig(address="auto", nodes=3),
        1,
    ),
    "namespace": ("ray_namespace=team", RayClusterConfig(namespace="team", gpus_per_node=8), 7),
    "timeline": ("monitor.enable_ray_timeline=true", RayClusterConfig(timeline=True, gpus_per_node=8), 7),
    "logs": ("log.group_by_node=True", RayClusterConfig(logs_by_node=True, gpus_per_node=8), 7),
}


@pytest.mark.parametrize(("written", "cluster", "ranks"), CLUSTER_REQUESTS.values(), ids=CLUSTER_REQUESTS)
def test_cluster_request_runs_on_ray(written: str, cluster: RayClusterConfig, ranks: int) -> None:
    run = read(written, here=False).run
    assert run.cluster == cluster
    assert run.trainer.engine == (Fsdp2EngineConfig(ranks=ranks) if ranks > 1 else LocalEngineConfig())
    assert not isinstance(run.synchronizer, MemorySyncConfig) and isinstance(run.buffer, QueueBufferConfig)


@pytest.mark.parametrize(("written", "cluster", "ranks"), CLUSTER_REQUESTS.values(), ids=CLUSTER_REQUESTS)
def test_here_runs_one_process_and_lists_overrides(
    written: str, cluster: RayClusterConfig, ranks: int
) -> None:
    loaded = read(written)
    assert loaded.run == read().run
    assert isinstance(loaded.run.cluster, LocalClusterConfig) and isinstance(
        loaded.run.buffer, QueueBufferConfig
    )
    keys = {item.key for item in loaded.overridden}
    assert keys and keys <= {written.split("=")[0], "cluster.node_num", "cluster.gpu_per_node"}


@pytest.mark.parametrize(("written", "cluster", "ranks"), CLUSTER_REQUESTS.values(), ids=CLUSTER_REQUESTS)
def test_round_trip(written: str, cluster: RayClusterConfig, ranks: int) -> None:
    assert write_dialect(LEDGER, read(written, here=False).run).unsupported == ()


def test_single_machine_runs_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = read("cluster={node_num: 1, gpu_per_node: 0}", "explorer.name=explorer", here=False)
    assert (cpu.run, cpu.notes) == (read().run, ())
    with pytest.raises(PlacementError, match=r"--here.*cluster\.gpu_per_node=1"):
        read("cluster.gpu_per_node=1", here=False)
    monkeypatch.setattr("strop.compat.verl.engine.count_cuda_devices", lambda: 8)
    run = read("cluster={node_num: 1, gpu_per_node: 1}", here=False).run
    assert isinstance(run.cluster, LocalClusterConfig) and isinstance(run.synchronizer, MemorySyncConfig)


def test_buffer_is_a_named_actor() -> None:
    run = read(NODES, "+buffer.trainer_input.experience_buffer={name: b, path: q.db}", here=False).run
    assert run.buffer == QueueBufferConfig(name="b", backup="q.db", on_timeout="train")
    assert write_dialect(LEDGER, run).unsupported == ()


def test_actor_names_are_inactive_without_a_cluster() -> None:
    names = ("explorer.name=e", "trainer.name=t")
    assert read(*names, NODES, here=False).run.cluster == RayClusterConfig(
        address="auto", nodes=2, gpus_per_node=4, explorer_name="e", trainer_name="t"
    )
    notes = read(*names, here=False).notes
    assert [note.partition(": ")[2] for note in notes] == [
        "inactive, because it names an actor, and a run without a cluster has no actors."
    ] * 2
    with pytest.raises(ConfigError, match=r"explorer\.name and trainer\.name are both 'e'"):
        read("explorer.name=e", "trainer.name=e", NODES, here=False)


def test_trainer_gets_the_remaining_gpus() -> None:
    def ranks(engines: int) -> int:
        overrides = (NODES, f"explorer.rollout_model.engine_num={engines}")
        return read_ignoring_placement(
            LEDGER, config_tree_from_overrides(LEDGER, overrides, Path("t.yaml"))
        ).trainer.engine.ranks

    assert ranks(4) == 4
    with pytest.raises(ConfigError, match=r"engine_num 8 x .* none of the cluster's 8 GPUs"):
        ranks(8)


def test_ray_address_joins_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:6379")
    assert read("ray_namespace=n", here=False).run.cluster.address == "auto"


@pytest.mark.parametrize("mode", ["train", "explore"])
def test_single_role_refuses_a_cluster(mode: str) -> None:
    with pytest.raises(PlacementError, match=r"--here.*cluster\.node_num=2"):
        read(f"mode={mode}", "cluster.node_num=2", here=False)


def test_the_trainers_ranks_are_divided_as_the_file_says() -> None:
    actor = "trainer.trainer_config.actor_rollout_ref.actor"
    for ulysses in (f"{actor}.ulysses_sequence_parallel_size=2", "trainer.ulysses_sequence_parallel_size=2"):
        loaded = read(
            NODES,
            "explorer.rollout_model.engine_num=4",
            f"+{ulysses}",
            f"+{actor}.fsdp_config.param_offload=True",
            here=False,
        )
        assert loaded.run.trainer.engine == Fsdp2EngineConfig(ranks=4, sequence_parallel=2, cpu_offload=True)
        assert any("CPUOffloadPolicy stands in" in note for note in loaded.notes)
    assert write_dialect(LEDGER, loaded.run).unsupported == ()


def test_the_trainers_ranks_divide_matrices_as_megatron_would() -> None:
    actor = "trainer.trainer_config.actor_rollout_ref.actor"
    loaded = read(
        NODES,
        "explorer.rollout_model.engine_num=4",
        f"{actor}.strategy=megatron",
        f"+{actor}.megatron.tensor_model_parallel_size=2",
        here=False,
    )
    assert loaded.run.trainer.engine == Fsdp2EngineConfig(ranks=4, tensor_parallel=2)
    assert any("tensor parallelism stands in" in note for note in loaded.notes)
    assert any("FSDP2 trains" in note for note in loaded.notes)


MEGATRON = (NODES, "explorer.rollout_model.engine_num=4", "+trainer.trainer_strategy=megatron")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (
            ("trainer.megatron.tensor_model_parallel_size=2", "trainer.megatron.sequence_parallel=true"),
            Fsdp2EngineConfig(ranks=4, tensor_parallel=2),
        ),
        (
            ("trainer.megatron.context_parallel_size=2", "trainer.grad_offload=true"),
            Fsdp2EngineConfig(ranks=4, sequence_parallel=2, cpu_offload=True),
        ),
        (("trainer.param_offload=true",), Fsdp2EngineConfig(ranks=4, cpu_offload=True)),
    ],
)
def test_sizes_of_megatron_in_trinity_0_6(settings: tuple[str, ...], expected: Fsdp2EngineConfig) -> None:
    loaded = read(*MEGATRON, *(f"+{setting}" for setting in settings), here=False)
    assert loaded.run.trainer.engine == expected
    assert any("stands in for it" in note for note in loaded.notes)


def test_pipelines_of_megatron_in_trinity_0_6_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"trainer\.megatron\.pipeline_model_parallel_size=2: .*Write 1"):
        read(*MEGATRON, "+trainer.megatron.pipeline_model_parallel_size=2", here=False)


def test_fsdp_does_not_read_megatrons_sizes() -> None:
    loaded = read(*MEGATRON[:2], "+trainer.megatron.tensor_model_parallel_size=2", here=False)
    assert loaded.run.trainer.engine == Fsdp2EngineConfig(ranks=4)
    assert any("inactive, because actor_rollout_ref.actor.strategy is fsdp" in note for note in loaded.notes)


def test_other_settings_of_megatrons_engine_are_without_effect() -> None:
    actor = "trainer.trainer_config.actor_rollout_ref.actor"
    loaded = read(*MEGATRON, f"+{actor}.megatron.use_mbridge=true", here=False)
    assert any("use_mbridge=true: without effect: FSDP2 trains" in note for note in loaded.notes)
