"""Serving engines in configurations of other tools: read without them installed, and replaced with --here."""

from __future__ import annotations

import pytest

from strop.compat.ledger.writer import write_dialect
from strop.compat.verl.ppo_trainer import LEDGER as VERL
from strop.compat.verl.ppo_trainer import read_verl
from strop.config.schema.rollout import NativeEngineConfig, SglangEngineConfig, VllmEngineConfig
from strop.errors import PlacementError

from .trinity_file import read

ROLLOUT = "actor_rollout_ref.rollout"
LINE = (
    "data.train_files=tasks.parquet",
    "actor_rollout_ref.model.path=/models/m",
    "algorithm.adv_estimator=grpo",
    f"{ROLLOUT}.n=4",
)
VLLM = (
    f"{ROLLOUT}.name=vllm",
    f"{ROLLOUT}.tensor_model_parallel_size=1",
    f"{ROLLOUT}.gpu_memory_utilization=0.4",
    f"{ROLLOUT}.dtype=float16",
    f"{ROLLOUT}.max_num_seqs=64",
    f"+{ROLLOUT}.engine_kwargs.vllm.disable_mm_preprocessor_cache=true",
    f"+{ROLLOUT}.engine_kwargs.vllm.swap_space=4",
    f"+{ROLLOUT}.enable_prefix_caching=False",
)


def test_verl_decides_the_options_of_vllm():
    engine = read_verl([*LINE, *VLLM]).run.rollout.engine
    assert isinstance(engine, VllmEngineConfig)
    assert (engine.tensor_parallel, engine.gpu_memory_utilization, engine.dtype) == (1, 0.4, "float16")
    assert (engine.max_num_seqs, engine.max_num_batched_tokens, engine.enforce_eager) == (64, 8192, True)
    assert engine.engine_kwargs == {"disable_mm_preprocessor_cache": True}
    assert engine.enable_prefix_caching is False and engine.pipeline_parallel == 1


def test_verls_default_of_two_gpus_per_engine_applies_with_vllm():
    engine = read_verl([*LINE, f"{ROLLOUT}.name=vllm"]).run.rollout.engine
    assert isinstance(engine, VllmEngineConfig) and engine.tensor_parallel == 2


def test_here_replaces_vllm_and_names_its_options():
    loaded = read_verl([*LINE, *VLLM], here=True)
    assert loaded.run.rollout.engine == NativeEngineConfig(max_sequences=64)
    replaced = {item.key.removeprefix(f"{ROLLOUT}.") for item in loaded.overridden}
    assert {"name", "gpu_memory_utilization", "engine_kwargs.vllm.swap_space"} <= replaced


def test_without_a_name_the_native_sampler_answers():
    assert isinstance(read_verl(LINE).run.rollout.engine, NativeEngineConfig)
    with pytest.raises(PlacementError, match="gpu_memory_utilization"):
        read_verl([*LINE, f"{ROLLOUT}.gpu_memory_utilization=0.4"])


def test_another_engine_is_refused_without_here():
    with pytest.raises(PlacementError, match=r"rollout.name=hf"):
        read_verl([*LINE, f"{ROLLOUT}.name=hf"])


def test_each_data_parallel_rank_of_verl_is_an_engine():
    several = (*LINE, *VLLM, f"+{ROLLOUT}.data_parallel_size=2")
    run = read_verl(several).run
    assert run.rollout.pool is not None and run.rollout.pool.engines == 2
    assert write_dialect(VERL, run).values[f"{ROLLOUT}.data_parallel_size"] == 2
    on_cpu = read_verl([*several, "trainer.device=cpu", "trainer.n_gpus_per_node=2", "trainer.nnodes=1"]).run
    assert (on_cpu.rollout.pool.engines, on_cpu.trainer.engine.ranks) == (2, 2)
    assert write_dialect(VERL, on_cpu).values[f"{ROLLOUT}.data_parallel_size"] == 2
    loaded = read_verl(several, here=True)
    assert loaded.run.rollout.pool is None
    assert f"{ROLLOUT}.data_parallel_size" in {item.key for item in loaded.overridden}
    with pytest.raises(PlacementError, match="each rank is an engine of its own"):
        read_verl([*LINE, f"+{ROLLOUT}.data_parallel_size=2"])


SGLANG = (
    f"{ROLLOUT}.name=sglang",
    f"{ROLLOUT}.gpu_memory_utilization=0.6",
    f"{ROLLOUT}.max_num_seqs=64",
    f"{ROLLOUT}.enforce_eager=False",
    f"{ROLLOUT}.max_num_batched_tokens=4096",
    f"{ROLLOUT}.engine_kwargs.sglang.attention_backend=fa3",
    f"+{ROLLOUT}.engine_kwargs.sglang.schedule_policy=fcfs",
)


def test_verl_decides_the_options_of_sglang():
    loaded = read_verl([*LINE, *SGLANG])
    engine = loaded.run.rollout.engine
    assert isinstance(engine, SglangEngineConfig)
    assert (engine.tensor_parallel, engine.mem_fraction_static, engine.max_running_requests) == (2, 0.6, 64)
    assert (engine.attention_backend, engine.disable_cuda_graph, engine.dtype) == ("fa3", False, "bfloat16")
    assert engine.engine_kwargs == {"schedule_policy": "fcfs"}
    native = read_verl([*LINE, *SGLANG], here=True).run.rollout.engine
    assert native == NativeEngineConfig(max_sequences=64, dtype="bfloat16")


def test_a_run_with_sglang_is_written_as_verls_options():
    written = write_dialect(VERL, read_verl([*LINE, *SGLANG]).run).values
    assert written[f"{ROLLOUT}.name"] == "sglang"
    assert written[f"{ROLLOUT}.gpu_memory_utilization"] == 0.6
    assert written[f"{ROLLOUT}.engine_kwargs.sglang.attention_backend"] == "fa3"


def test_a_run_with_vllm_is_written_as_verls_options():
    written = write_dialect(VERL, read_verl([*LINE, *VLLM]).run)
    assert written.values[f"{ROLLOUT}.name"] == "vllm"
    lost = [each.field for each in written.unsupported if each.field.startswith("rollout.engine")]
    assert not lost
    arguments = {key: value for key, value in written.values.items() if ".engine_kwargs.vllm." in key}
    assert arguments
    assert read_verl([*LINE, *VLLM]).run.rollout.engine.engine_kwargs == {
        key.rpartition(".")[2]: value for key, value in arguments.items()
    }


TRINITY = (
    "explorer.rollout_model.engine_type=vllm",
    "explorer.rollout_model.tensor_parallel_size=2",
    "+explorer.rollout_model.gpu_memory_utilization=0.7",
    "+explorer.rollout_model.dtype=float32",
)


def test_trinity_decides_the_options_of_vllm():
    engine = read(*TRINITY, here=False).run.rollout.engine
    assert isinstance(engine, VllmEngineConfig)
    assert (engine.tensor_parallel, engine.gpu_memory_utilization, engine.dtype) == (2, 0.7, "float32")
    assert (engine.seed, engine.enforce_eager, engine.enable_prefix_caching) == (42, True, True)
    assert isinstance(read().run.rollout.engine, NativeEngineConfig)


def test_here_replaces_vllm_in_trinity():
    loaded = read(*TRINITY)
    assert isinstance(loaded.run.rollout.engine, NativeEngineConfig)
    replaced = {item.key.rpartition(".")[2] for item in loaded.overridden}
    assert {"engine_type", "tensor_parallel_size", "gpu_memory_utilization", "dtype"} <= replaced


def test_trinity_decides_the_options_of_sglang():
    options = [option.replace("vllm", "sglang") for option in TRINITY]
    engine = read(*options, here=False).run.rollout.engine
    assert isinstance(engine, SglangEngineConfig)
    assert (engine.tensor_parallel, engine.mem_fraction_static, engine.dtype) == (2, 0.7, "float32")
    assert isinstance(read(*options).run.rollout.engine, NativeEngineConfig)


AUXILIARY = (
    "+explorer.auxiliary_models=[{model_path: /models/judge, engine_type: vllm, tensor_parallel_size: 2, "
    "gpu_memory_utilization: 0.3, dtype: bfloat16, engine_num: 1}, {model_path: /models/small, "
    "tensor_parallel_size: 1}]",
)


def test_trinity_decides_the_engines_of_auxiliary_models():
    served, small = read(*AUXILIARY, here=False).run.rollout.auxiliary_models
    assert isinstance(served.engine, VllmEngineConfig) and isinstance(small.engine, NativeEngineConfig)
    assert (served.engine.tensor_parallel, served.engine.gpu_memory_utilization) == (2, 0.3)
    assert served.engine.dtype == "bfloat16" and served.engine.enforce_eager is False
    replaced = [model.engine for model in read(*AUXILIARY).run.rollout.auxiliary_models]
    assert all(isinstance(engine, NativeEngineConfig) for engine in replaced)


def test_an_auxiliary_model_has_one_engine():
    with pytest.raises(PlacementError, match=r"engine_num.*an auxiliary model has one engine"):
        read(*(option.replace("engine_num: 1", "engine_num: 2") for option in AUXILIARY), here=False)


def test_trinity_divides_its_engines():
    model = "+explorer.rollout_model"
    sizes = (f"{model}.pipeline_parallel_size=3", f"{model}.data_parallel_size=2")
    options = (
        *TRINITY,
        *sizes,
        f"{model}.enable_expert_parallel=true",
        "explorer.rollout_model.engine_num=2",
    )
    run = read(*options, here=False).run
    assert (run.rollout.engine.tensor_parallel, run.rollout.engine.pipeline_parallel) == (2, 3)
    assert run.rollout.engine.engine_kwargs == {"enable_expert_parallel": True}
    assert run.rollout.pool.engines == 4
    cluster = ("cluster.node_num=1", "cluster.gpu_per_node=32")
    assert read(*options, *cluster, here=False).run.trainer.engine.ranks == 32 - 2 * 2 * 3 * 2
    replaced = {item.key.rpartition(".")[2] for item in read(*options).overridden}
    assert {"pipeline_parallel_size", "data_parallel_size", "enable_expert_parallel"} <= replaced
    with pytest.raises(PlacementError, match="data_parallel_size"):
        read(f"{model}.data_parallel_size=2", here=False)


def test_trinity_divides_an_auxiliary_model_into_stages():
    judge = "+explorer.auxiliary_models=[{model_path: Qwen/Q7, pipeline_parallel_size: 2}]"
    (model,) = read(judge, here=False).run.rollout.auxiliary_models
    assert isinstance(model.engine, VllmEngineConfig) and model.engine.pipeline_parallel == 2
