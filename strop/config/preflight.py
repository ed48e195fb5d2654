"""Checks of a run before anything heavy is loaded: files, folders, environment variables and packages that are
missing, and arguments that the installed vLLM or SGLang does not have, read without an import of these libraries."""

from __future__ import annotations

import ast
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path

from strop.config.checks.topology import fixed_weights_fault
from strop.config.load.config_tree import Source
from strop.config.load.loader import LoadedRun
from strop.config.machine import described_machine
from strop.config.model_files import (
    labels_fault,
    language_model_fault,
    model_file_faults,
    quantization_fault,
    quantization_library,
)
from strop.config.paths import data_file_name, existing_path, gguf_file, is_local
from strop.config.peft_adapter import adapter_in_model_folder, adapter_options
from strop.config.schema import Run
from strop.config.schema.data import GENERATORS, TasksetConfig, is_template
from strop.config.schema.model import LoraConfig, ModelConfig
from strop.config.schema.record import TRACKING_SERVICES
from strop.config.schema.reward import RewardConfig
from strop.config.schema.rollout import (
    InferenceEngineConfig,
    ServerConnectionConfig,
    ServingEngineConfig,
    WorkflowConfig,
)
from strop.config.schema.run import configured_rewards, lacks_reward
from strop.errors import ConfigError, ModelError
from strop.printable import did_you_mean
from strop.python_rewards import PythonRewards, list_rewards

NO_REWARD = (
    "reward: missing, so nothing scores the responses. Write a built-in (`reward: gsm8k`), your own function "
    "(`reward: file.py:name`), or pass a function to `strop.train` from Python."
)
_OPTIMIZER_PACKAGES = {
    "adamw_bnb": ("bitsandbytes", "bitsandbytes"),
    **dict.fromkeys(("ademamix", "galore_adamw", "schedule_free_sgd"), ("pytorch_optimizer", "optimizers")),
}
"""Optimizers that are classes of a package, with the package and the extra that installs it."""
_QUANTIZATION_PACKAGES = {f"quantization by {name}": (name, name) for name in ("bitsandbytes", "torchao")}
_WORKFLOW_FILES = ("tool_config", "function_file", "interaction_config", "agent_loops")
"""Arguments of the workflows `tools` and `verl_agents` that name a file."""
_WEIGHTS = ("*.safetensors", "*.bin")
_TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")


def missing_files(loaded: LoadedRun, written_before: Collection[Path] = ()) -> list[str]:
    """Return one sentence per local file or folder of the run that is missing, empty or damaged.

    Names on the Hub and URLs are not checked, nor the folders `written_before`, into which earlier stages of the file
    write their models.
    """
    run, sources = loaded.run, loaded.sources
    model_faults = partial(_model_faults, written_before=written_before)
    faults = [
        *model_faults(run.model.path, "model.path", sources, tokenizer=run.model.tokenizer),
        *_policy(run, sources),
        *_adapter(run.model.lora),
        *(
            fault
            for where, taskset in (run.data.training_tasksets() if run.data.queue is None else {}).items()
            for fault in _tasks(taskset, f"{where}.path", sources)
        ),
        *(
            fault
            for index, taskset in enumerate(run.data.eval)
            for fault in _tasks(taskset, f"data.eval.{index}.path", sources)
        ),
    ]
    if (second := second_model(run)) is not None:
        field, model = second
        faults += model_faults(model.path, f"{field}.model.path", sources, tokenizer=model.tokenizer)
    for number, teacher in enumerate(run.algorithm.teachers):
        key = f"algorithm.distillation.teachers.{number}.path"
        faults += model_faults(teacher.path, key, sources, tokenizer=teacher.tokenizer)
    faults += _code(run, sources)
    for where, reward in configured_rewards(run).items():
        faults += _reward(reward, where, sources, model_faults)
    for index, answers in enumerate(run.data.demonstrations):
        faults += _tasks(answers, f"data.demonstrations.{index}.path", sources)
    if lacks_reward(run) and not loaded.rewards and not run.algorithm.is_offline:
        faults.append(NO_REWARD)
    for index, auxiliary in enumerate(run.rollout.auxiliary_models):
        faults += model_faults(auxiliary.path, f"rollout.auxiliary_models.{index}.path", sources)
    faults += _workflow(run.rollout.workflow, "rollout.workflow.name", sources)
    for index, taskset in enumerate(run.data.eval):
        if taskset.workflow is not None:
            faults += _workflow(taskset.workflow, f"data.eval.{index}.workflow.name", sources)
    template = run.data.chat_template
    named = template not in ("tokenizer", "none") and not is_template(template)
    if named and not _is_file(template):
        faults.append(f"{_at('data.chat_template', sources)}: there is no file {template}.")
    faults += [
        f"{_at('record.monitors', sources)}: {name} is not installed: pip install 'strop[{name}]'"
        for name in run.record.monitors
        if name in TRACKING_SERVICES and find_spec(name) is None
    ]
    faults += _engine_library(run, sources)
    faults += _missing_packages(run, sources)
    if (fault := fixed_weights_fault(run)) is not None:
        faults.append(f"{_at('rollout.engine.type', sources)}: {fault}.")
    faults += _server_key(run.rollout.engine, sources)
    faults += _unknown_arguments(run.rollout.engine, sources)
    parent = next(folder for folder in (run.folder_path, *run.folder_path.parents) if existing_path(folder))
    if not (is_folder := parent.is_dir()) or not os.access(parent, os.W_OK | os.X_OK):
        reason = "is not writable" if is_folder else "is no folder"
        faults.append(
            f"{_at('output', sources)}: {run.folder_path} cannot be created, because {parent} {reason}."
        )
    return faults


def second_model(run: Run) -> tuple[str, ModelConfig] | None:
    """The section with a model of its own that is trained next to the policy, and that model."""
    own = {name: section.model for name, section in run.algorithm.trained_models.items()}
    return next(((f"algorithm.{name}", model) for name, model in own.items() if model is not None), None)


def _policy(run: Run, sources: Mapping[str, Source]) -> list[str]:
    """The faults of a trained model with quantized weights, and of a language model that is a classifier."""
    faults = [quantization_fault(run.model)]
    if run.algorithm.reward_model is None:
        faults.append(language_model_fault(run.model.path))
    return [f"{_at('model.path', sources)}: {fault}" for fault in faults if fault is not None]


def _adapter(lora: LoraConfig | None) -> list[str]:
    """The fault of a local adapter that the run starts with."""
    if lora is None or lora.adapter is None or not is_local(lora.adapter):
        return []
    try:
        adapter_options(lora)
    except ModelError as error:
        return [str(error)]
    return []


def _engine_library(run: Run, sources: Mapping[str, Source]) -> list[str]:
    """Faults of an engine whose library is not installed, or cannot load the model's format."""
    library = run.rollout.engine.type
    if library not in _ENGINE_LIBRARIES:
        return []
    where, faults = _at("rollout.engine.type", sources), []
    if described_machine() is None and find_spec(library) is None:
        faults.append(
            f"{where}: {_ENGINE_LIBRARIES[library].title} is not installed: pip install 'strop[{library}]', or write "
            "`rollout.engine: native`; for a configuration of another tool --here does that."
        )
    if gguf_file(run.model.path) is not None:
        faults.append(
            f"{where}: {_ENGINE_LIBRARIES[library].title} gets its weights from a folder with safetensors. Write "
            f"one with `strop export {run.model.path} --to FOLDER` and name it as model.path."
        )
    return faults


def _missing_packages(run: Run, sources: Mapping[str, Source]) -> list[str]:
    """Return an error for each package that a value needs and this machine lacks; another machine is not known."""
    engine, optimizer = run.trainer.engine.type, run.trainer.optimizer.type
    needed: list[tuple[str, str, Mapping[str, tuple[str, str]]]] = [
        ("trainer.engine.type", engine, {"deepspeed": ("deepspeed", "deepspeed")}),
        ("trainer.optimizer.type", optimizer, _OPTIMIZER_PACKAGES),
        ("cluster.type", run.cluster.type, {"ray": ("ray", "ray")}),
        ("rollout.engine.type", run.rollout.engine.type, {"openai": ("aiohttp", "agents")}),
        ("model.path", f"quantization by {quantization_library(run.model)}", _QUANTIZATION_PACKAGES),
    ]
    found = [(field, value, packages[value]) for field, value, packages in needed if value in packages]
    return [
        f"{_at(field, sources)}: {value} needs the package {package}, which is not installed: pip install "
        f"'strop[{extra}]'"
        for field, value, (package, extra) in found
        if described_machine() is None and find_spec(package) is None
    ]


def _unknown_arguments(engine: InferenceEngineConfig, sources: Mapping[str, Source]) -> list[str]:
    """Return the names in `engine_kwargs` that the library does not have."""
    if not isinstance(engine, ServingEngineConfig) or not engine.engine_kwargs:
        return []
    known = argument_names(engine.type)
    return [
        f"{_at('rollout.engine.engine_kwargs', sources)}.{name}: not an argument of {known.owner}"
        f"{did_you_mean(name, known.names) or '.'} Remove it, or write one of its names."
        for name in engine.engine_kwargs
        if name not in known.names
    ]


def _server_key(engine: InferenceEngineConfig, sources: Mapping[str, Source]) -> list[str]:
    if not isinstance(engine, ServerConnectionConfig):
        return []
    name = engine.api_key_env
    if name is None or os.environ.get(name):
        return []
    return [f"{_at('rollout.engine.api_key_env', sources)}: the environment variable {name} is not set."]


def require_files(loaded: LoadedRun, rewards: PythonRewards | None) -> None:
    """Raise `ConfigError` for `missing_files`; `rewards` are the functions from Python."""
    if faults := missing_files(replace(loaded, rewards=list_rewards(rewards))):
        raise ConfigError(*faults)


def require_reward(run: Run, reward: PythonRewards | None) -> None:
    """Raise `ConfigError` if neither the run file nor Python has a reward."""
    if reward is None and lacks_reward(run):
        raise ConfigError(NO_REWARD)


def _workflow(workflow: WorkflowConfig, field: str, sources: Mapping[str, Source]) -> list[str]:
    if workflow.name == "verifiers" and find_spec("verifiers") is None:
        return [f"{_at(field, sources)}: verifiers is not installed: pip install 'strop[verifiers]'"]
    files = [(field, workflow.name.rpartition(":")[0])] if ".py:" in workflow.name else []
    if (tools := workflow.tool_args) is not None:
        args = field.removesuffix("name") + "args"
        named = {**workflow.args, **(tools if isinstance(tools, dict) else {})}
        files += [(args, str(named[name])) for name in _WORKFLOW_FILES if named.get(name)]
    return [f"{_at(at, sources)}: there is no file {file}." for at, file in files if not _is_file(file)]


def _code(run: Run, sources: Mapping[str, Source]) -> list[str]:
    """Return the missing Python files of `model.imports` and custom datasets."""
    files = {"model.imports": [name for name in run.model.imports if name.endswith(".py")]}
    for option, name in run.algorithm.user_functions.items():
        if ".py:" in name:
            files[f"algorithm.{option}"] = [name.rpartition(":")[0]]
    sets: dict[str, TasksetConfig] = {**run.data.training_tasksets()}
    sets |= {f"data.eval.{i}": one for i, one in enumerate(run.data.eval)}
    for where, taskset in sets.items():
        if taskset.dataset is not None and ".py:" in taskset.dataset.name:
            files[f"{where}.dataset.name"] = [taskset.dataset.name.rpartition(":")[0]]
    return [
        f"{_at(field, sources)}: there is no file {file}."
        for field, names in files.items()
        for file in names
        if not _is_file(file)
    ]


def _reward(
    reward: RewardConfig, where: str, sources: Mapping[str, Source], model_faults: Callable[..., list[str]]
) -> list[str]:
    files: dict[str, str] = {}
    faults: list[str] = []
    for index, part in enumerate(reward.functions):
        file, colon, _ = part.function.rpartition(":")
        if colon and file.endswith(".py"):
            files[f"{where}.functions.{index}.function"] = file
    for index, model in enumerate(reward.models):
        key = f"{where}.models.{index}.path"
        found = model_faults(model.path, key, sources, tokenizer=model.tokenizer)
        if not found and (folder := existing_path(model.path)) is not None and folder.is_dir():
            found = [
                f"{_at(key, sources)}: {fault}" for fault in filter(None, [labels_fault(folder, model.path)])
            ]
        faults += found
        if model.chat_template != "tokenizer" and not is_template(model.chat_template):
            files[f"{where}.models.{index}.chat_template"] = model.chat_template
    for index, judge in enumerate(reward.judges):
        if judge.prompt.endswith(".jinja"):
            files[f"{where}.judges.{index}.prompt"] = judge.prompt
        if judge.api_key_env is not None and not os.environ.get(judge.api_key_env):
            field = f"{where}.judges.{index}.api_key_env"
            faults.append(f"{_at(field, sources)}: the environment variable {judge.api_key_env} is not set.")
    return faults + [
        f"{_at(field, sources)}: there is no file {file}."
        for field, file in files.items()
        if not _is_file(file)
    ]


def _at(field: str, sources: Mapping[str, Source]) -> str:
    source = sources[field]
    return f"{source}: {field}"


def _is_file(path: str) -> bool:
    place = existing_path(path)
    return place is not None and place.is_file()


def _model_faults(
    path: str,
    field: str,
    sources: Mapping[str, Source],
    *,
    written_before: Collection[Path],
    tokenizer: str | None = None,
) -> list[str]:
    """Return the faults of a local model folder; `tokenizer` is that of another folder."""
    if not is_local(path) or Path(path).expanduser() in written_before or sources[field].kind == "stage":
        return []
    if gguf_file(path) is not None:
        if find_spec("gguf") is None:
            return [
                f"{_at(field, sources)}: reading {path} needs the package gguf: pip install 'strop[gguf]'"
            ]
        return []
    folder = existing_path(path)
    if folder is None or not folder.is_dir():
        return [f"{_at(field, sources)}: there is no model folder {path}."]
    if (fault := adapter_in_model_folder(folder)) is not None:
        return [f"{_at(field, sources)}: {fault}"]
    needed = {"no config.json": ("config.json",), "no weights (*.safetensors)": _WEIGHTS}
    needed |= {"no tokenizer": _TOKENIZERS} if tokenizer is None else {}
    missing = [what for what, names in needed.items() if not any(next(folder.glob(n), None) for n in names)]
    if missing:
        return [f"{_at(field, sources)}: the model folder {path} has {', '.join(missing)}."]
    return [f"{_at(field, sources)}: {fault}" for fault in model_file_faults(folder, path)]


def hub_names(models: Mapping[str, str]) -> dict[str, str]:
    """Models, by their keys, that are no folders here, and so may be names of the hub."""
    return {key: path for key, path in models.items() if not is_local(path)}


def hub_models(run: Run) -> list[str]:
    """Return one sentence for a model path that names no folder here, and so may name a model of the hub."""
    path = run.model.path
    if is_local(path):
        return []
    return [
        f"model: there is no folder {path} here, so the run loads {path} from the Hugging Face hub (or its cache)"
    ]


def _tasks(taskset: TasksetConfig, field: str, sources: Mapping[str, Source]) -> list[str]:
    paths = (taskset.path,) if isinstance(taskset.path, str) else taskset.path
    faults = []
    for path in paths:
        local = existing_path(path)
        package = path.partition("://")[0]
        if package in GENERATORS and find_spec(package) is None:
            extra = package.replace("_", "-")
            faults.append(f"{_at(field, sources)}: {package} is not installed: pip install 'strop[{extra}]'")
        if "://" in path or not (is_local(path) or data_file_name(path)):
            continue
        if local is None:
            faults.append(f"{_at(field, sources)}: there is no file {path}.")
        elif local.is_file() and local.stat().st_size == 0:
            faults.append(f"{_at(field, sources)}: {path} is empty.")
        elif local.is_dir() and not any(local.iterdir()):
            faults.append(f"{_at(field, sources)}: the folder {path} is empty.")
    if taskset.few_shot is not None:
        examples = TasksetConfig(path=taskset.few_shot.path)
        faults += _tasks(examples, field.removesuffix("path") + "few_shot.path", sources)
    return faults


VLLM_VERSION = "0.32.0"
"""Version of `VLLM`."""
VLLM = """
additional_config aggregate_engine_logging all2all_backend
allow_deprecated_quantization allowed_local_media_path allowed_media_domains async_scheduling attention_backend
attention_config aux_output_config block_size code_revision collect_detailed_traces compilation_config config_format
convert cp_kv_cache_interleave_size cpu_distributed_timeout_seconds cpu_offload_gb cpu_offload_params
cudagraph_capture_sizes cudagraph_metrics custom_histogram_buckets data_parallel_address data_parallel_backend
data_parallel_external_lb data_parallel_hybrid_lb data_parallel_multi_port_external_lb data_parallel_rank
data_parallel_rpc_port data_parallel_size data_parallel_size_local data_parallel_start_rank
dbo_decode_token_threshold dbo_prefill_token_threshold dcp_comm_backend dcp_kv_cache_interleave_size dcp_q_replicate
decode_context_parallel_size default_mm_loras device_ids diffusion_config disable_cascade_attn
disable_chunked_mm_input disable_custom_all_reduce disable_hybrid_kv_cache_manager disable_log_stats
disable_nccl_for_dp_synchronization disable_sliding_window distributed_executor_backend distributed_timeout_seconds
download_dir dp_sync_interval dtype ec_manager_config ec_transfer_config elastic_ep_max_dp_size
enable_batch_sharded_sampling enable_chunked_prefill enable_cumem_allocator enable_dbo enable_elastic_ep
enable_ep_weight_filter enable_eplb enable_expert_parallel enable_fault_tolerance enable_flashinfer_autotune
enable_hc_sp enable_layerwise_nvtx_tracing enable_log_requests enable_logging_iteration_details enable_lora
enable_mamba_cache_stochastic_rounding enable_mamba_shared_prefix_checkpoint enable_mfu_metrics
enable_mixed_moe_lora_format enable_mm_embeds enable_mm_processor_stats enable_moe_shared_loras
enable_nccl_comm_suspend enable_prefix_caching enable_prompt_embeds enable_return_routed_experts
enable_shm_tensor_arena enable_sleep_mode enable_tower_connector_lora enable_trace_replay enforce_eager
engram_config eplb_config expert_placement_strategy fail_on_environ_validation fault_tolerance_config
fully_sharded_loras gdn_prefill_backend generation_config gpu_memory_utilization hf_config_path hf_overrides
hf_token ignore_patterns interleave_mm_strings io_processor_plugin ir_op_priority jit_monitor_mode
jit_monitor_verbose kda_decode_backend kda_prefill_backend kernel_config kv_cache_dtype kv_cache_dtype_skip_layers
kv_cache_memory_bytes kv_cache_metrics kv_cache_metrics_sample kv_events_config kv_offloading_backend
kv_offloading_size kv_sharing_fast_prefill kv_transfer_config language_model_only limit_mm_per_prompt linear_backend
load_format log_config_file log_level logging_config logits_processors logprobs_mode long_prefill_token_threshold
long_prefill_token_threshold_adaptive lora_dtype lora_target_modules mamba_backend mamba_block_size
mamba_cache_dtype mamba_cache_mode mamba_cache_philox_rounds mamba_config mamba_ssm_cache_dtype mamba_ssu_algorithm
master_addr master_port max_cpu_loras max_cudagraph_capture_size max_logprobs max_lora_cls_labels max_lora_rank
max_loras max_model_len max_num_active_seqs max_num_batched_tokens max_num_queued_reqs max_num_queued_tokens
max_num_scheduled_tokens max_num_seqs max_parallel_loading_workers media_io_kwargs mm_device_do_normalize
mm_encoder_attn_backend mm_encoder_attn_dtype mm_encoder_fp8_scale_path mm_encoder_fp8_scale_save_margin
mm_encoder_fp8_scale_save_path mm_encoder_only mm_encoder_tp_mode mm_hasher_algorithm mm_ipc_gpu_memory_gb
mm_processor_cache_gb mm_processor_cache_type mm_processor_device mm_processor_kwargs
mm_shm_cache_max_object_size_mb mm_tensor_ipc model model_class_overrides model_impl model_loader_extra_config
model_weights moe_backend nnodes node_rank num_gpu_blocks_override numa_bind numa_bind_cpus numa_bind_nodes
offload_backend offload_group_size offload_num_in_group offload_params offload_prefetch_step optimization_level
otlp_traces_endpoint override_generation_config per_request_spec_decode_metrics performance_mode
pipeline_parallel_size pooler_config prefill_context_parallel_size prefill_schedule_interval
prefix_cache_retention_interval prefix_caching_hash_algo prefix_match_unit profiler_config pt_load_map_location
quantization quantization_config ray_workers_use_nsight reasoning_config reasoning_parser reasoning_parser_plugin
renderer_num_workers replayssm_buffer_len return_sampling_mask revision runner safetensors_load_strategy
safetensors_prefetch_block_size safetensors_prefetch_num_threads scheduler_cls scheduler_reserve_full_isl
scheduling_policy seed served_model_name show_hidden_metrics_for_version shutdown_timeout skip_mm_profiling
skip_tokenizer_init sleep_mode_offload_cudagraph sleep_preserve_parameter_names sparse_indexer_topk_backend
spec_method spec_model spec_tokens specialize_active_lora speculative_config stream_interval
structured_outputs_config swa_bounded_replay tensor_parallel_size tokenizer tokenizer_mode tokenizer_revision
tokens_only trust_remote_code ubatch_size use_fp64_gumbel use_replayssm use_tqdm_on_load video_pruning_method
video_pruning_rate watermark watermark_config weight_transfer_config worker_cls worker_extension_cls
"""
"""Arguments of vLLM's `AsyncEngineArgs`."""

SGLANG_VERSION = "0.5.23"
"""Version of `SGLANG`."""
SGLANG = """
_radix_eviction_policy_explicitly_set _speculative_draft_quantization_explicitly_set
_swa_full_tokens_ratio_explicitly_set abort_on_priority_when_disabled admin_api_key allow_auto_truncate
allowed_media_domains api_key asr_max_buffer_seconds asr_max_concurrent_sessions attention_backend attn_cp_size
attn_dp_size aux_hidden_state_capture base_gpu_id batch_notify_size bf16_gemm_backend boundary_reduction
bucket_e2e_request_latency bucket_inter_token_latency bucket_time_to_first_token c128_page_size chat_template
checkpoint_engine_wait_weights_before_ready chunked_prefill_size completion_template
constrained_json_disable_any_whitespace constrained_json_max_whitespace_cnt constrained_json_whitespace_pattern
context_length cp_strategy cpu_offload_gb crash_dump_folder cuda_graph_backend_decode cuda_graph_backend_prefill
cuda_graph_bs_decode cuda_graph_bs_prefill cuda_graph_config cuda_graph_max_bs_decode cuda_graph_max_bs_prefill
cuda_graph_max_seq_len_prefill cuda_graph_prefill_max_context custom_sigquit_handler custom_weight_loader
dcp_comm_backend dcp_replicate_q_proj dcp_size debug_cuda_graph debug_tensor_dump_input_file
debug_tensor_dump_layers debug_tensor_dump_output_folder decode_attention_backend decode_log_interval
decoupled_spec_bind_endpoint decoupled_spec_connect_endpoints decoupled_spec_rank decoupled_spec_role
decrypted_config_file decrypted_draft_config_file deepep_config deepep_dispatcher_output_dtype deepep_mode
deepep_v2_mode default_chat_template_kwargs default_priority_value delete_ckpt_after_loading detokenizer_worker_num
device disable_aiter_allreduce_fusion_in_decode disable_aiter_allreduce_fusion_in_prefill disable_attn_tp_gather
disable_chunked_prefix_cache disable_cuda_graph disable_cuda_graph_padding disable_custom_all_reduce
disable_decode_cuda_graph disable_fast_image_processor disable_flashinfer_autotune
disable_flashinfer_cutlass_moe_fp4_allgather disable_hybrid_swa_memory disable_outlines_disk_cache
disable_overlap_schedule disable_prefill_cuda_graph disable_priority_preemption disable_radix_cache
disable_shared_experts_fusion disable_tokenizer_batch_decode disaggregation_bootstrap_port
disaggregation_decode_allocation_policy disaggregation_decode_enable_offload_kvcache
disaggregation_decode_enable_radix_cache disaggregation_decode_extra_slots
disaggregation_decode_host_receive_threshold disaggregation_decode_polling_interval
disaggregation_decode_retraction_backup disaggregation_enable_kv_checksum disaggregation_ib_device
disaggregation_mode disaggregation_transfer_backend dist_init_addr dist_timeout dllm_algorithm dllm_algorithm_config
dllm_fdfo download_dir dp_size dsa_decode_backend dsa_paged_mqa_logits_backend dsa_prefill_backend dsa_topk_backend
dsa_triton_union dsv4_attn_backend dsv4_prefill_backend dtype dwdp_size dynamic_batch_tokenizer_batch_size
dynamic_batch_tokenizer_batch_timeout elastic_ep_backend elastic_ep_initial_size elastic_ep_scale_timeout
enable_adaptive_dispatch_to_encoder enable_aiter_allreduce_fusion enable_amd_monokernel
enable_attn_tp_input_scattered enable_broadcast_mm_inputs_process enable_cache_report enable_cp_decode_attn_tp
enable_cp_tp_group_sharing enable_cudagraph_gc enable_custom_logit_processor enable_decoder_swa_bounded_replay
enable_deepseek_v4_fp4_indexer enable_dense_mlp_attn_tp enable_deterministic_inference enable_dp_attention
enable_dp_attention_local_control_broadcast enable_dp_lm_head enable_draft_weights_cpu_backup
enable_dsa_cache_layer_split enable_dsa_fused_indexer enable_dynamic_batch_tokenizer enable_dynamic_chunking
enable_elastic_expert_backup enable_encoder_swa_bounded_replay enable_eplb enable_flashinfer_allreduce_fusion
enable_flexkv enable_forward_pass_metrics enable_fp32_lm_head enable_fused_moe_sum_all_reduce
enable_fused_qk_norm_rope enable_hierarchical_cache enable_hisparse enable_http2 enable_http_worker_reuseport
enable_int8_mamba_checkpoint enable_kv_cache_sharding enable_layernorm_sp enable_layerwise_nvtx_marker
enable_lean_attention enable_linear_replayssm enable_linear_replayssm_spec enable_linker_mla_dedup enable_lmcache
enable_lora enable_lora_overlap_loading enable_mamba_cache_stochastic_rounding enable_megamoe_for_layernorm_sp
enable_memory_saver enable_metrics enable_metrics_for_all_schedulers enable_mfu_metrics enable_mis
enable_mixed_chunk enable_mm_global_cache enable_mscclpp enable_multi_layer_eagle enable_multimodal enable_nccl_nvls
enable_nvidia_megakernel enable_p2p_check enable_page_major_kv_layout enable_paged_experts enable_pd_role_switch
enable_pdmux enable_precise_embedding_interpolation enable_prefill_cp enable_prefill_delayer enable_prefix_mm_cache
enable_priority_scheduling enable_profile_cuda_graph enable_quant_communications enable_request_time_stats_logging
enable_response_store enable_return_aux_hidden_states enable_return_hidden_states enable_return_indexer_topk
enable_return_routed_experts enable_scattered_sconv enable_session_radix_cache enable_shared_experts_attn_tp
enable_single_batch_overlap enable_ssl_refresh enable_streaming_session enable_strict_thinking enable_symm_mem
enable_tf32_matmul enable_tokenizer_batch_encode enable_torch_compile enable_torch_compile_debug_mode
enable_torch_symm_mem enable_tp_lm_head_all_to_all enable_trace enable_two_batch_overlap
enable_unified_cache_external_linker enable_unified_memory enable_w4a4_mxfp4_megamoe enable_waterfill
enable_watermark enable_weights_cpu_backup encoder_bootstrap_port encoder_only encoder_register_urls
encoder_transfer_backend encoder_urls enforce_disable_flashinfer_allreduce_fusion enforce_shared_experts_fusion
engine_info_bootstrap_port ep_dispatch_algorithm ep_join_mode ep_join_rank_offset ep_num_redundant_experts ep_size
eplb_algorithm eplb_min_rebalancing_utilization_threshold eplb_rebalance_layers_per_chunk
eplb_rebalance_num_iterations expert_balancedness_report_mode expert_distribution_recorder_buffer_size
expert_distribution_recorder_mode experts_shared_outer_loras export_metrics_to_file export_metrics_to_file_dir
extra_metric_labels fastapi_root_path file_storage_path flashinfer_a2a_dispatch_type
flashinfer_allreduce_fusion_backend flashinfer_autotune_skip_ops flashinfer_mla_disable_ragged
flashinfer_mxfp4_moe_precision flexkv_config_file forward_hooks forward_pass_metrics_ipc_name
forward_pass_metrics_worker_id fp4_gemm_runner_backend fp8_gemm_runner_backend fuseep_mode gated_launch_port
gc_threshold gc_warning_threshold_secs generation_tokens_buckets gpu_id_step grammar_backend grpc_mode grpc_port
grpc_response_timeout_secs grpc_worker_threads hf_chat_template_name hicache_host_memory_fraction
hicache_host_memory_mode hicache_io_backend hicache_mem_layout hicache_ratio hicache_size hicache_storage_backend
hicache_storage_backend_extra_config hicache_storage_prefetch_policy hicache_storage_prefetch_retry_max_attempts
hicache_storage_prefetch_retry_poll_interval hicache_write_policy hisparse_config host
http2_initial_connection_window_size http2_max_concurrent_streams image_processor_backend
incremental_streaming_output init_expert_location int8_mamba_ckpt_size is_embedding json_model_override_args
kt_cpuinfer kt_max_deferred_experts_per_token kt_method kt_num_gpu_experts kt_threadpool_count kt_weight_path
kv_cache_dtype kv_canary kv_canary_real_data kv_canary_sweep_interval kv_events_config language_model_only
language_only limit_mm_data_per_request linear_attn_backend linear_attn_decode_backend linear_attn_prefill_backend
linear_attn_verify_backend linear_replayssm_cache_len lmcache_config_file load_balance_method load_format
load_publish_endpoint load_snapshot_publish_interval log_level log_level_http log_requests log_requests_format
log_requests_level log_requests_target lora_backend lora_drain_wait_threshold lora_eviction_policy lora_paths
lora_strict_loading lora_target_modules lora_use_virtual_experts mamba_backend mamba_cache_philox_rounds
mamba_full_memory_ratio mamba_max_states_per_path mamba_radix_cache_strategy mamba_ssm_dtype mamba_track_interval
max_ep_size max_loaded_loras max_lora_chunk_size max_lora_rank max_loras_per_batch max_mamba_cache_size
max_prefill_tokens max_queued_requests max_running_requests max_total_tokens media_url_max_file_size_mb
mem_fraction_static min_free_slots_delay mlx_enable_sampling mm_attention_backend mm_enable_dp_encoder
mm_feature_transport mm_global_cache_backend mm_io_worker_num mm_preprocess_cache_size_mb mm_process_config
mm_processor_worker_num model_checksum model_config_parser model_impl model_loader_extra_config model_path
modelexpress_config modelopt_checkpoint_restore_path modelopt_checkpoint_save_path modelopt_export_path
modelopt_quant moe_a2a_backend moe_dense_tp_size moe_dp_size moe_runner_backend mooncake_ib_device
msprobe_dump_config nccl_port nnodes node_rank num_continuous_decode_steps num_reserved_decode_tokens numa_node
offload_group_size offload_mode offload_num_in_group offload_prefetch_step optimistic_prefill_attempts
otlp_service_name otlp_traces_endpoint page_size paged_experts_num_resident pdmux_config_path ple_offload_backend
ple_offload_dir ple_offload_embedding port pp_async_batch_depth pp_max_micro_batch_size pp_size pre_warm_nccl
preferred_sampling_params prefill_attention_backend prefill_decode_interval prefill_decode_interval_min_bs
prefill_delayer_forward_passes_buckets prefill_delayer_max_delay_ms prefill_delayer_max_delay_passes
prefill_delayer_queue_min_ratio prefill_delayer_token_usage_low_watermark prefill_delayer_wait_seconds_buckets
prefill_kv_cache_dequant_dtype prefill_max_requests prefill_only_disable_kv_cache
priority_scheduling_preemption_threshold prompt_tokens_buckets qsa_indexer_dtype quantization
quantization_param_path quantize_and_serve radix_cache_backend radix_eviction_policy radix_eviction_policy_config
random_seed reasoning_parser remote_instance_weight_loader_backend remote_instance_weight_loader_seed_instance_ip
remote_instance_weight_loader_seed_instance_service_port remote_instance_weight_loader_send_weights_group_ports
remote_instance_weight_loader_start_seed_via_transfer_engine retraction_policy return_aux_hidden_state_layer_ids
return_hidden_states_mode return_input_ids return_output_ids revision rl_on_policy_target rl_quant_profile
sampling_backend sampling_defaults sampling_mask_max_tokens schedule_conservativeness
schedule_low_priority_values_first schedule_policy scheduler_recv_interval served_model_name shared_experts_tp_size
show_time_cost sidecar sidecar_args skip_server_warmup skip_tokenizer_init sleep_on_idle sm_group_num smg_grpc_mode
smg_http_sidecar_port soft_watchdog_timeout spec_trace_dir speculative_accept_threshold_acc
speculative_accept_threshold_single speculative_adaptive speculative_adaptive_config speculative_algorithm
speculative_attention_mode speculative_boundary_reduction speculative_dflash_block_size
speculative_domino_candidate_pool_size speculative_draft_attention_backend speculative_draft_kv_cache_dtype
speculative_draft_load_format speculative_draft_model_path speculative_draft_model_quantization
speculative_draft_model_revision speculative_draft_sink_size speculative_draft_window_size
speculative_dsa_topk_backend speculative_dspark_align_verify_tokens_to_graph_tier speculative_dspark_block_size
speculative_dspark_confidence_sts_path speculative_dspark_sps_table_path speculative_eagle_topk
speculative_enable_w4a4_mxfp4_megamoe speculative_moe_a2a_backend speculative_moe_runner_backend
speculative_ngram_capacity speculative_ngram_external_corpus_max_tokens speculative_ngram_external_corpus_path
speculative_ngram_external_sam_budget speculative_ngram_match_type speculative_ngram_max_bfs_breadth
speculative_ngram_max_trie_depth speculative_ngram_min_bfs_breadth speculative_num_draft_tokens
speculative_num_steps speculative_token_map speculative_use_block_verification speculative_use_rejection_sampling
ssl_ca_certs ssl_certfile ssl_keyfile ssl_keyfile_password startup_weight_load_mode stat_loggers stream_interval
stream_response_default_include_usage strip_thinking_cache swa_full_tokens_ratio swa_prefix_tails
tbo_token_distribution_threshold tokenizer_backend tokenizer_metrics_allowed_custom_labels
tokenizer_metrics_custom_labels_header tokenizer_mode tokenizer_path tokenizer_worker_num tool_call_parser
tool_server torch_compile_max_bs tp_size trace_modules triton_attention_num_kv_splits
triton_attention_reduce_in_fp32 triton_attention_split_tile_size trust_mm_content_hashes trust_remote_code
trust_request_chat_template unified_cache_external_linker_backend unified_cache_external_linker_config uno_lora_path
use_ray uses_mamba_radix_cache uvicorn_access_log_exclude_prefixes warmups watchdog_timeout watermark_config
watermark_context_window watermark_default_enabled watermark_enforce_all watermark_key watermark_key_b
watermark_max_probability watermark_mixing_probability weight_cache_mode weight_cache_socket weight_cache_timeout
weight_loader_disable_mmap weight_loader_drop_cache_after_load weight_loader_prefetch_checkpoints
weight_loader_prefetch_num_threads weight_version
"""
"""Arguments of SGLang's `ServerArgs`."""


@dataclass(frozen=True, slots=True)
class ArgumentNames:
    """Arguments of a library's engine."""

    names: frozenset[str]
    """All names."""
    owner: str
    """Class that has them, with the library's version, for messages."""


@dataclass(frozen=True, slots=True)
class _Library:
    title: str
    argument_class: str
    sources: Callable[[Path], Iterable[Path]]
    """Source files with the arguments, in the folder of the package."""
    classes: Collection[str] | None
    """Classes of these files whose fields are the arguments; None for all classes."""
    recorded: str
    recorded_version: str


_ENGINE_LIBRARIES: Mapping[str, _Library] = {
    "vllm": _Library(
        title="vLLM",
        argument_class="AsyncEngineArgs",
        sources=lambda package: [package / "engine" / "arg_utils.py"],
        classes=("EngineArgs", "AsyncEngineArgs"),
        recorded=VLLM,
        recorded_version=VLLM_VERSION,
    ),
    "sglang": _Library(
        title="SGLang",
        argument_class="ServerArgs",
        sources=lambda package: sorted((package / "srt" / "arg_groups" / "fields").glob("*.py")),
        classes=None,
        recorded=SGLANG,
        recorded_version=SGLANG_VERSION,
    ),
}


@cache
def argument_names(engine_type: str) -> ArgumentNames:
    """The arguments of the installed library of `vllm` or `sglang`; without one, those of the recorded version."""
    library = _ENGINE_LIBRARIES[engine_type]
    found = find_spec(engine_type)
    if found is not None and found.origin is not None:
        sources = library.sources(Path(found.origin).parent)
        names = frozenset(name for source in sources for name in _fields(source, library.classes))
        if names:
            return ArgumentNames(names, f"{library.argument_class} in the installed {library.title}")
    return ArgumentNames(
        frozenset(library.recorded.split()),
        f"{library.argument_class} in {library.title} {library.recorded_version}",
    )


def _fields(source: Path, classes: Collection[str] | None) -> frozenset[str]:
    """Annotated fields of the classes of a source file; empty if it does not exist."""
    if not source.is_file():
        return frozenset()
    definitions = (
        each
        for each in ast.parse(source.read_text(encoding="utf-8")).body
        if isinstance(each, ast.ClassDef) and (classes is None or each.name in classes)
    )
    fields = (field for each in definitions for field in each.body if isinstance(field, ast.AnnAssign))
    return frozenset(field.target.id for field in fields if isinstance(field.target, ast.Name))
