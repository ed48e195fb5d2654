"""Ledger rows of verl's settings of engines, profilers and Ray: they decide where and how fast a run executes."""

from __future__ import annotations

from typing import Any

from strop.compat.ledger.key_mapping import (
    UNSET,
    InactiveCheck,
    KeyMapping,
    always,
    no_effect,
    not_on_page,
    only,
    placement,
    placement_section,
    refused,
)
from strop.compat.ledger.placement_notes import (
    ALWAYS_PACKED,
    NATIVE_SAMPLER,
    NO_QUANTIZED_TRAINING,
    NO_RAY,
    NO_SHARDS,
    ONE_MACHINE,
    OWN_KERNELS,
    fused_kernels,
)
from strop.compat.ledger.value_types import ANY, STRING
from strop.compat.verl import recomputation, switches
from strop.compat.verl.file_keys import NO_REPLAY
from strop.compat.verl.gpus import DATA_PARALLEL, DEVICE
from strop.compat.verl.layout import TIMEOUT
from strop.compat.verl.serving_engine import serving_option

_NO_PROFILER = "Strop does not profile a run; the metrics have the time of every part of a step"
_SEED = "data.seed seeds all random choices"
_ONE_ROUTING = "sampler and trainer compute with one model, so they route alike"
_ACTOR, _REF, _ROLLOUT = (f"actor_rollout_ref.{name}" for name in ("actor", "ref", "rollout"))


def _where(key: str, default: Any, instead: str, inactive: InactiveCheck | None = None) -> KeyMapping:
    """A placement key of which only the default needs no replacement."""
    return placement(key, default, instead, supported=only(default), value_type=ANY, inactive=inactive)


def _without_effect(section: str, why: str) -> KeyMapping:
    return no_effect(f"{section}.*", UNSET, why, value_type=ANY)


def _quantized_training(section: str, inactive: InactiveCheck | None = None) -> tuple[KeyMapping, ...]:
    """Rows of quantization-aware training, which changes what is learned."""
    return (
        refused(f"{section}.qat.enable", False, NO_QUANTIZED_TRAINING, inactive=inactive),
        no_effect(f"{section}.qat.*", UNSET, "quantization-aware training is off", value_type=ANY),
    )


def worker_rows(section: str, inactive: InactiveCheck | None = None) -> tuple[KeyMapping, ...]:
    """Rows that actor, critic and reference model share."""
    return (
        _without_effect(f"{section}.profiler", _NO_PROFILER),
        _without_effect(f"{section}.profile", _NO_PROFILER),
        no_effect(f"{section}.rollout_n", UNSET, "actor_rollout_ref.rollout.n applies", value_type=ANY),
        _where(f"{section}.nccl_timeout", 600, ONE_MACHINE, inactive),
        _where(f"{section}.entropy_checkpointing", False, OWN_KERNELS, inactive),
        _where(f"{section}.entropy_from_logits_with_chunking", False, OWN_KERNELS, inactive),
        _where(f"{section}.entropy_from_logits_chunk_size", 2048, OWN_KERNELS, inactive),
        _where(f"{section}.pad_to_length", False, ALWAYS_PACKED, inactive),
        placement(f"{section}.use_remove_padding", UNSET, ALWAYS_PACKED, supported=always, value_type=ANY),
        *(
            placement_section(f"{section}.{engine}", NO_SHARDS, inactive=inactive)
            for engine in ("fsdp", "veomni", "torchtitan", "automodel", "mindspeed", "engine")
        ),
        placement_section(f"{section}.router_replay", _ONE_ROUTING, inactive=inactive),
        refused(
            f"{section}.load_weight", True, "the weights are always loaded; leave it True", inactive=inactive
        ),
    )


_WORKERS = (
    *worker_rows(_ACTOR),
    *worker_rows(_REF, switches.reference),
    placement_section(f"{_ACTOR}.fsdp_config", NO_SHARDS),
    placement_section(f"{_REF}.fsdp_config", NO_SHARDS, inactive=switches.reference),
    *_quantized_training(_ACTOR),
    *_quantized_training(f"{_ACTOR}.fsdp_config"),
    _where(f"{_ACTOR}.use_fused_kernels", UNSET, OWN_KERNELS),
    _where(
        f"{_ACTOR}.use_prefix_grouper", False, "prompts of a group are always shared, with the same gradient"
    ),
    _where(f"{_REF}.use_torch_compile", UNSET, "nothing is compiled", switches.reference),
    placement(
        f"{_REF}.strategy",
        f"${{{_ACTOR}.strategy}}",
        "a single process computes its log-probs",
        value_type=STRING,
        supported=only("fsdp", "fsdp2"),
        inactive=switches.reference,
    ),
    no_effect(f"{_ACTOR}.calculate_entropy", False, "the metrics always include the entropy"),
    no_effect(
        f"{_ACTOR}.calculate_sum_pi_squared", False, "optimal_token_baseline computes it, without this key"
    ),
    no_effect(f"{_ACTOR}.freeze_vision_tower", False, "models of text have no vision tower"),
    no_effect(f"{_ACTOR}.checkpoint.async_save", False, "checkpoints are complete before the next step"),
    no_effect(f"{_ACTOR}.checkpoint.strict", True, "checkpoints are always complete"),
    _without_effect(f"{_ACTOR}.checkpoint.mbridge_config", "there is one checkpoint format"),
)
_SAMPLER = (
    *(
        _where(f"{_ROLLOUT}.{name}", default, NATIVE_SAMPLER)
        for name, default in (
            ("enable_sleep_mode", UNSET),
            ("cudagraph_capture_sizes", None),
            ("logprobs_mode", "processed_logprobs"),
            ("scheduling_policy", "fcfs"),
            ("multi_stage_wake_up", False),
            ("skip_tokenizer_init", True),
            ("moe_load_balance_metrics_interval", 0),
            ("standalone_gpu_memory_utilization", None),
            ("update_weights_bucket_megabytes", UNSET),
        )
    ),
    DATA_PARALLEL,
    *(
        _where(f"{_ROLLOUT}.{name}", 1, "experts are divided like the other layers of an engine")
        for name in ("expert_parallel_size", "moe_tensor_parallel_size")
    ),
    _where(f"{_ROLLOUT}.nnodes", 0, ONE_MACHINE),
    _where(f"{_ROLLOUT}.n_gpus_per_node", UNSET, ONE_MACHINE),
    serving_option("enable_prefix_caching", True, native=only(True), value_type=ANY),
    serving_option("pipeline_model_parallel_size", 1, native=only(1), value_type=ANY, instead=NO_SHARDS),
    serving_option(
        "quantization",
        None,
        native=only(None),
        value_type=ANY,
        instead="the sampler uses the trainer's weights, without quantization",
    ),
    _where(f"{_ROLLOUT}.quantization_config_file", None, "the sampler uses the trainer's weights"),
    _where(f"{_ROLLOUT}.enable_rollout_routing_replay", False, _ONE_ROUTING),
    placement_section(f"{_ROLLOUT}.engine_kwargs", NATIVE_SAMPLER),
    placement_section(f"{_ROLLOUT}.checkpoint_engine", "the sampler reads the trainer's weights directly"),
    placement_section(f"{_ROLLOUT}.disaggregation", NATIVE_SAMPLER),
    placement_section(f"{_ROLLOUT}.layer_name_map", NATIVE_SAMPLER),
    placement_section(f"{_ROLLOUT}.server", NATIVE_SAMPLER),
    _where(f"{_ROLLOUT}.sglang_rollout_mode", UNSET, NATIVE_SAMPLER),
    placement_section(f"{_ROLLOUT}.mtp", "tokens are sampled one by one, from the same distribution"),
    _without_effect(f"{_ROLLOUT}.qat", "quantization-aware training is off"),
    _without_effect(f"{_ROLLOUT}.profiler", _NO_PROFILER),
    _without_effect(f"{_ROLLOUT}.prometheus", "the metrics are in the run folder"),
    _without_effect(f"{_ROLLOUT}.trace", "rollouts are recorded in the run folder"),
    no_effect(f"{_ROLLOUT}.seed", UNSET, _SEED, value_type=ANY),
    no_effect(f"{_ROLLOUT}.full_determinism", UNSET, "a run is always deterministic", value_type=ANY),
    no_effect(f"{_ROLLOUT}.calculate_log_probs", UNSET, "the sampler always records them", value_type=ANY),
    refused(
        f"{_ROLLOUT}.over_sample_rate",
        0,
        "verl ends the slowest responses of a step unfinished, as empty ones; Strop finishes every response; write 0, "
        "or bound a rollout's time by rollout.timeout_seconds in a run file",
    ),
)
_MODEL = "actor_rollout_ref.model"
_MODELS = (
    placement_section(f"{_MODEL}.fused_kernel_options", OWN_KERNELS),
    *recomputation.EARLIER_ROWS,
    placement_section(f"{_MODEL}.gradient_checkpointing_kwargs", "each layer is recomputed"),
    _where(f"{_MODEL}.override_config.attn_implementation", UNSET, OWN_KERNELS),
    _where(f"{_MODEL}.tiled_mlp.enabled", False, OWN_KERNELS),
    placement_section(f"{_MODEL}.tiled_mlp", OWN_KERNELS),
)
_CLUSTER = (
    no_effect("hydra.*", UNSET, "the run folder is trainer.default_local_dir", value_type=ANY),
    no_effect(
        "model_engine",
        "dp",
        "the strategies of actor, critic and reference model follow from it",
        value_type=STRING,
    ),
    *(placement_section(section, NO_RAY) for section in ("ray_kwargs", "ray_init", "transfer_queue")),
    TIMEOUT,
    DEVICE,
    _without_effect("global_profiler", _NO_PROFILER),
    *(
        _without_effect(f"trainer.{name}", _NO_PROFILER)
        for name in ("controller_nsight_options", "worker_nsight_options")
    ),
    no_effect("trainer.profile_steps", None, _NO_PROFILER, value_type=ANY),
    _without_effect("trainer.npu_profile", _NO_PROFILER),
    no_effect("trainer.esi_redundant_time", 0, "a run saves when it receives SIGTERM", value_type=ANY),
    no_effect("trainer.use_legacy_worker_impl", UNSET, "there is one implementation", value_type=ANY),
    no_effect("trainer.use_v1", True, "there is one trainer"),
    *(
        refused(f"skip.{name}.enable", False, NO_REPLAY)
        for name in ("rollout", "rollout_tq", "async_rollout")
    ),
    no_effect("skip.*", UNSET, "rollouts are never skipped", value_type=ANY),
)
_CRITIC = (
    *worker_rows("critic", switches.gae),
    no_effect("critic.data_loader_seed", UNSET, _SEED, value_type=ANY),
    *(
        placement_section(f"critic.model.{name}", NO_SHARDS, inactive=switches.gae)
        for name in ("fsdp_config", "fused_kernel_options", "gradient_checkpointing_kwargs")
    ),
    *(
        fused_kernels(f"critic.model.{name}", value_type=ANY, inactive=switches.gae)
        for name in ("use_liger", "use_fused_kernels")
    ),
    _where("critic.model.use_shm", False, OWN_KERNELS, switches.gae),
    *(
        _without_effect(f"critic.{name}", "critic and policy are saved together")
        for name in ("checkpoint.mbridge_config",)
    ),
    no_effect("critic.checkpoint.async_save", False, "checkpoints are complete before the next step"),
)

ROWS = not_on_page(*_WORKERS, *_SAMPLER, *_MODELS, *_CLUSTER, *_CRITIC)
