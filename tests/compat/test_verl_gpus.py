"""verl's command lines on machines that have the GPUs they ask for."""

from __future__ import annotations

import pytest

from strop.compat.verl.ppo_trainer import read_verl
from strop.config.load.loader import LoadedRun
from strop.config.machine import on_machine, parse_machine
from strop.config.schema.rollout import VllmEngineConfig
from strop.config.schema.run import RayClusterConfig
from strop.config.schema.trainer import Fsdp2EngineConfig, WrapPolicyConfig
from strop.errors import ConfigError, PlacementError
from strop.plan.placement import plan_run

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
    assert isinstance(run.trainer.engine, Fsdp2EngineConfig) and run.trainer.engine.reference_cpu_offload
    assert any(
        "ref.fsdp_config.param_offload" in note and "CPUOffloadPolicy stands in" in note
        for note in loaded.notes
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


FSDP, MEGATRON = f"{_ACTOR}.fsdp_config", f"{_ACTOR}.megatron"
LAYOUTS = {
    "ulysses": ((f"{_ACTOR}.ulysses_sequence_parallel_size=2",), {"sequence_parallel": 2}),
    "hsdp": ((f"{FSDP}.fsdp_size=4",), {"replicate": 2}),
    "ddp": ((f"{FSDP}.fsdp_size=1",), {"replicate": 8}),
    "offload": ((f"{FSDP}.optimizer_offload=True",), {"cpu_offload": True}),
    "offload policy": (
        (f"{_ACTOR}.strategy=fsdp2", f"+{FSDP}.offload_policy=True"),
        {"cpu_offload": True},
    ),
    "communication": (
        (f"+{FSDP}.reshard_after_forward=False", f"+{FSDP}.forward_prefetch=True"),
        {"reshard_after_forward": False, "forward_prefetch": 1},
    ),
    "mixed precision": ((f"+{FSDP}.mixed_precision.reduce_dtype=bf16",), {"reduce_dtype": "bfloat16"}),
    "wrap policy": (
        (f"{FSDP}.wrap_policy.min_num_params=9", f"+{FSDP}.wrap_policy.transformer_layer_cls_to_wrap=[A]"),
        {"wrap": WrapPolicyConfig(layers=("A",), min_parameters=9)},
    ),
    "megatron": (
        (
            f"{_ACTOR}.strategy=megatron",
            f"{MEGATRON}.tensor_model_parallel_size=2",
            f"{MEGATRON}.context_parallel_size=2",
            f"{MEGATRON}.param_offload=True",
        ),
        {"sequence_parallel": 2, "tensor_parallel": 2, "cpu_offload": True},
    ),
}


@pytest.mark.parametrize(("keys", "fields"), LAYOUTS.values(), ids=LAYOUTS)
def test_the_layout_of_the_ranks_is_that_of_the_line(
    keys: tuple[str, ...], fields: dict[str, object]
) -> None:
    loaded = read("8xH100-80GB", *keys)
    assert loaded.overridden == ()
    engine = Fsdp2EngineConfig(ranks=8, reference_cpu_offload=True)
    assert loaded.run.trainer.engine == engine.model_copy(update=fields)


def test_what_stands_in_for_megatrons_sizes_is_said() -> None:
    notes = read("8xH100-80GB", *LAYOUTS["megatron"][0]).notes
    said = {note.split("=")[0].rpartition(".")[2]: note for note in notes}
    assert "FSDP2 trains" in said["strategy"]
    assert "torch's tensor parallelism" in said["tensor_model_parallel_size"]
    assert "Ulysses" in said["context_parallel_size"]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ((f"{_ACTOR}.ulysses_sequence_parallel_size=3",), "does not divide the 8 ranks"),
        ((f"{FSDP}.fsdp_size=3",), "does not divide the trainer's 8 ranks"),
        (
            (f"{_ACTOR}.strategy=megatron", f"{MEGATRON}.tensor_model_parallel_size=3"),
            "tensor_model_parallel_size is 3, which does not divide the trainer's 8 ranks",
        ),
        (
            (f"{_ACTOR}.strategy=megatron", f"{MEGATRON}.pipeline_model_parallel_size=2"),
            "no pipeline or expert parallelism. Write 1: FSDP2 divides every layer",
        ),
    ],
)
def test_sizes_that_do_not_fit_are_refused(keys: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read("8xH100-80GB", *keys)


def test_ranks_may_share_the_cpu() -> None:
    """A line with `trainer.device=cpu` runs as it stands, on processes of this machine."""
    keys = ("algorithm", "data", "actor_rollout_ref.model", f"{_ACTOR}.optim", f"{_ACTOR}.ppo")
    line = [key for key in LINE if key.startswith((*keys, "trainer.total"))]
    loaded = read_verl(
        [
            *line,
            "trainer.device=cpu",
            "trainer.n_gpus_per_node=4",
            f"{_ACTOR}.ulysses_sequence_parallel_size=2",
            f"{FSDP}.param_offload=True",
        ]
    )
    assert loaded.overridden == ()
    assert loaded.run.trainer.engine == Fsdp2EngineConfig(
        ranks=4, device="cpu", sequence_parallel=2, cpu_offload=True
    )


@pytest.mark.parametrize(
    ("keys", "dtype", "compute_dtype"),
    [
        ((), "float32", "bfloat16"),
        (("model_dtype=bf16",), "bfloat16", "bfloat16"),
        (("mixed_precision.param_dtype=fp32", "mixed_precision.buffer_dtype=fp32"), "float32", "float32"),
        (("mixed_precision.param_dtype=bfloat16",), "float32", "bfloat16"),
    ],
)
def test_precision_of_parameters_and_of_the_computation(
    keys: tuple[str, ...], dtype: str, compute_dtype: str
) -> None:
    model = read("8xH100-80GB", *(f"+{_ACTOR}.fsdp_config.{key}" for key in keys)).run.model
    assert (model.dtype, model.compute_dtype) == (dtype, compute_dtype)
