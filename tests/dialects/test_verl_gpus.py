"""verl's command lines on machines that have the GPUs they ask for."""

from __future__ import annotations

import pytest

from strop.config.load.loader import LoadedRun
from strop.config.plan.machine import on_machine, parse_machine
from strop.config.plan.table import plan_run
from strop.config.schema.cluster import RayClusterConfig
from strop.config.schema.inference_engine import VllmEngineConfig
from strop.dialects.verl.ppo_trainer import read_verl
from strop.errors import ConfigError, PlacementError

_ACTOR, _ROLLOUT, _REF = (f"actor_rollout_ref.{name}" for name in ("actor", "rollout", "ref"))
LINE = (
    "algorithm.adv_estimator=grpo",
    "data.train_files=train.parquet",
    "data.val_files=test.parquet",
    "data.train_batch_size=1024",
    "data.max_prompt_length=512",
    "data.max_response_length=1024",
    "actor_rollout_ref.model.path=Qwen/Qwen2-7B-Instruct",
    "actor_rollout_ref.model.enable_gradient_checkpointing=True",
    f"{_ACTOR}.optim.lr=1e-6",
    f"{_ACTOR}.ppo_mini_batch_size=256",
    f"{_ACTOR}.ppo_micro_batch_size_per_gpu=40",
    f"{_ACTOR}.use_kl_loss=True",
    f"{_ACTOR}.fsdp_config.param_offload=False",
    f"{_ROLLOUT}.name=vllm",
    f"{_ROLLOUT}.n=5",
    f"{_ROLLOUT}.tensor_model_parallel_size=2",
    f"{_ROLLOUT}.gpu_memory_utilization=0.6",
    f"{_ROLLOUT}.log_prob_micro_batch_size_per_gpu=80",
    f"{_REF}.log_prob_micro_batch_size_per_gpu=80",
    f"{_REF}.fsdp_config.param_offload=True",
    "trainer.logger=console",
    "trainer.n_gpus_per_node=8",
    "trainer.nnodes=1",
    "trainer.total_epochs=15",
)


def read(machine: str, *more: str, here: bool = False) -> LoadedRun:
    with on_machine(parse_machine(machine)):
        return read_verl([*LINE, *more], here=here)


def test_a_line_for_eight_gpus_needs_no_here_on_eight_gpus() -> None:
    loaded = read("8xH100-80GB")
    run = loaded.run
    assert loaded.overridden == ()
    assert run.trainer.engine.ranks == 8 and run.rollout.pool and run.rollout.pool.engines == 4
    assert run.rollout.colocated and run.releases_engine_memory
    assert isinstance(run.rollout.engine, VllmEngineConfig) and run.rollout.engine.tensor_parallel == 2
    assert any(
        "ref.fsdp_config.param_offload" in note and "shards of the model" in note for note in loaded.notes
    )
    with on_machine(parse_machine("8xH100-80GB")):
        plan = plan_run(run)
    assert plan.is_shared and [placed.gpus for placed in plan.samplers] == [(0, 1), (2, 3), (4, 5), (6, 7)]


def test_without_them_the_refusal_names_them_and_here_replaces_them() -> None:
    with pytest.raises(PlacementError, match=r"--here .*n_gpus_per_node=8: a single .* this number of GPUs"):
        read("4xH100-80GB")
    run = read("4xH100-80GB", here=True).run
    assert run.trainer.engine.ranks == 1 and run.rollout.pool is None and run.rollout.colocated is None


def test_several_nodes_are_a_cluster_of_which_the_engines_have_half() -> None:
    run = read("2x8xH100-80GB", "trainer.nnodes=2").run
    assert isinstance(run.cluster, RayClusterConfig) and run.cluster.nodes == 2
    assert run.trainer.engine.ranks == 8 and run.rollout.pool and run.rollout.pool.engines == 4
    with on_machine(parse_machine("2x8xH100-80GB")):
        plan = plan_run(run)
    assert {placed.node.name for placed in plan.samplers} == {"node-1"} and not plan.is_shared


def test_the_memory_of_engines_may_be_kept() -> None:
    run = read("8xH100-80GB", "actor_rollout_ref.rollout.free_cache_engine=False").run
    assert run.rollout.colocated and not run.releases_engine_memory


def test_engines_larger_than_a_node_are_refused() -> None:
    with pytest.raises(ConfigError, match="needs 16 GPUs of one node"):
        read("8xH100-80GB", "actor_rollout_ref.rollout.tensor_model_parallel_size=16")
