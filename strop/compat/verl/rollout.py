"""Ledger rows of verl's `actor_rollout_ref.rollout`.

Where `rollout.name` is set to vllm or sglang, they decide `rollout.engine`. With `--here`, and where the name is not
set, the native sampler answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from strop.compat.ledger.key_mapping import (
    ANY,
    INTEGER,
    NATIVE_SAMPLER,
    NO_SHARDS,
    NUMBER,
    ONE_MACHINE,
    STRING,
    UNSET,
    ForeignValues,
    KeyMapping,
    SupportCheck,
    ValueType,
    mapped,
    never,
    no_effect,
    not_on_page,
    nullable,
    one_of,
    only,
    placement,
    placement_section,
    refused,
    same_as,
    written_by,
)
from strop.compat.verl import switches
from strop.compat.verl.data import all_tokens, tasksets
from strop.compat.verl.engine import (
    DATA_PARALLEL,
    NO_PROFILER,
    ONE_ROUTING,
    ONE_SEED,
    RELEASE,
    default_only,
    log_prob_rows,
)
from strop.compat.verl.switches import serving_engine
from strop.config.schema import Run
from strop.config.schema.rollout import NativeEngineConfig, SglangEngineConfig, VllmEngineConfig

_ROLLOUT = "actor_rollout_ref.rollout"
_DTYPES = {
    "bfloat16": "bfloat16",
    "bf16": "bfloat16",
    "float32": "float32",
    "fp32": "float32",
    "float": "float32",
}
_HALF_DTYPES = ("float16", "fp16", "half")
_OPTIONS: Mapping[str, Mapping[str, str]] = {
    "vllm": {
        "tensor_model_parallel_size": "tensor_parallel",
        "gpu_memory_utilization": "gpu_memory_utilization",
        "max_num_batched_tokens": "max_num_batched_tokens",
        "max_num_seqs": "max_num_seqs",
        "max_model_len": "max_model_len",
        "enforce_eager": "enforce_eager",
        "enable_chunked_prefill": "enable_chunked_prefill",
        "enable_prefix_caching": "enable_prefix_caching",
        "pipeline_model_parallel_size": "pipeline_parallel",
        "quantization": "quantization",
    },
    "sglang": {
        "tensor_model_parallel_size": "tensor_parallel",
        "gpu_memory_utilization": "mem_fraction_static",
        "max_num_seqs": "max_running_requests",
        "enforce_eager": "disable_cuda_graph",
        "quantization": "quantization",
        "engine_kwargs.sglang.attention_backend": "attention_backend",
    },
}
"""Field of `rollout.engine` for each option that verl passes to an engine."""
_NOT_PASSED = {"vllm": ("swap_space",), "sglang": ("attention_backend",)}
"""Names in `engine_kwargs` that have a row of their own."""


def _with_serving(native: SupportCheck) -> SupportCheck:
    """Check that supports every value with a serving engine, and otherwise those that the native sampler supports."""
    return lambda foreign, value: serving_engine(foreign) is not None or native(foreign, value)


def write_engine(run: Run) -> Mapping[str, Any]:
    """Write the options of a serving engine; of the native sampler, the number of sequences."""
    section = run.rollout.engine
    if isinstance(section, NativeEngineConfig):
        return {f"{_ROLLOUT}.max_num_seqs": section.max_sequences}
    if not isinstance(section, VllmEngineConfig | SglangEngineConfig):
        return {}
    name = section.type
    written = {f"{_ROLLOUT}.{key}": getattr(section, field) for key, field in _OPTIONS[name].items()}
    written |= {
        f"{_ROLLOUT}.engine_kwargs.{name}.{key}": value for key, value in section.engine_kwargs.items()
    }
    given = {key: value for key, value in written.items() if value is not None}
    return {f"{_ROLLOUT}.name": name, **given}


@written_by(write_engine)
def engine(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the options of a serving engine; for the native sampler, the number of sequences."""
    name = serving_engine(foreign)
    if name is None:
        return {"rollout.engine.max_sequences": foreign[f"{_ROLLOUT}.max_num_seqs"]}
    settings: dict[str, Any] = {"type": name}
    settings |= {field: foreign[f"{_ROLLOUT}.{key}"] for key, field in _OPTIONS[name].items()}
    prefix = f"{_ROLLOUT}.engine_kwargs.{name}."
    kwargs = {
        key.removeprefix(prefix): foreign[key]
        for key in foreign.written
        if key.startswith(prefix) and key.removeprefix(prefix) not in _NOT_PASSED[name]
    }
    if kwargs:
        settings["engine_kwargs"] = kwargs
    return {f"rollout.engine.{field}": value for field, value in settings.items()}


def _serving_option(
    key: str,
    default: Any,
    *,
    native: SupportCheck,
    value_type: ValueType | None = None,
    instead: str = NATIVE_SAMPLER,
) -> KeyMapping:
    """The row of an option that decides a field of a serving engine; the native sampler does not use it."""
    fields = dict.fromkeys(
        f"rollout.engine.{options[key]}" for options in _OPTIONS.values() if key in options
    )

    def not_passed(foreign: ForeignValues) -> str | None:
        name = serving_engine(foreign)
        return f"verl does not pass it to {name}" if name is not None and key not in _OPTIONS[name] else None

    def unused(foreign: ForeignValues) -> str | None:
        value = foreign[f"{_ROLLOUT}.{key}"]
        is_unused = serving_engine(foreign) is None and value != default and native(foreign, value)
        return f"accepted without effect: {instead}" if is_unused else None

    row = placement(
        f"{_ROLLOUT}.{key}",
        default,
        instead,
        value_type=value_type,
        supported=_with_serving(native),
        inactive=not_passed,
        fields=tuple(fields),
        read=engine,
    )
    return replace(row, warn=unused)


def write_precision(run: Run) -> Mapping[str, Any]:
    """Write the sampler's dtype, which is the trainer's compute dtype by default."""
    kind = getattr(run.rollout.engine, "dtype", "model")
    named = run.model.compute_dtype or run.model.dtype if kind == "model" else kind
    return {f"{_ROLLOUT}.dtype": named}


@written_by(write_precision)
def precision(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the sampler's dtype: bfloat16 or float32, with a serving engine float16 too; in place of another, the
    trainer's."""
    named = foreign[f"{_ROLLOUT}.dtype"]
    if named in _HALF_DTYPES and serving_engine(foreign):
        return {"rollout.engine.dtype": "float16"}
    return {"rollout.engine.dtype": _DTYPES.get(named, "model")}


def _supports_dtype(foreign: ForeignValues, value: Any) -> bool:
    """Check of `rollout.dtype`."""
    return value in _DTYPES or (value in _HALF_DTYPES and serving_engine(foreign) is not None)


_ENGINES = ("vllm", "sglang", "hf", "trtllm", "vllm_omni", "naive")
"""Names of rollouts in verl's versions."""
_SINGLE_ROLLOUT_ESTIMATORS = ("gae", *switches.REWARD_OF_ONE, "reinforce_plus_plus", "remax")
"""Estimators that can learn from a single response per prompt."""


def write_sampling(run: Run) -> Mapping[str, Any]:
    """Write the sampling options; a top-k of -1 keeps all tokens."""
    options = run.rollout.sampling
    return {
        f"{_ROLLOUT}.do_sample": options.temperature > 0,
        f"{_ROLLOUT}.temperature": options.temperature or 1.0,
        f"{_ROLLOUT}.top_k": options.top_k or -1,
        f"{_ROLLOUT}.top_p": options.top_p,
        f"{_ROLLOUT}.ignore_eos": options.ignore_eos,
    }


@written_by(write_sampling)
def sampling(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the sampling options of training responses; `do_sample: False` means greedy ones at any temperature. Several
    greedy responses to a prompt are refused."""
    count, samples = foreign[f"{_ROLLOUT}.n"], foreign[f"{_ROLLOUT}.do_sample"]
    if not samples and (count > 1 or foreign["algorithm.adv_estimator"] == "remax"):
        others = (
            "the one with which remax compares it" if count == 1 else f"the other {count - 1} of its prompt"
        )
        raise foreign.error_for(
            f"{_ROLLOUT}.do_sample",
            f"{_ROLLOUT}.do_sample is False, and a greedy response is identical to {others}, so that nothing "
            f"can be learned; write {_ROLLOUT}.do_sample=True, or one response per prompt with an estimator that needs "
            "no others, such as reinforce_plus_plus.",
        )
    return {
        "rollout.sampling.temperature": foreign[f"{_ROLLOUT}.temperature"] if samples else 0.0,
        "rollout.sampling.top_k": all_tokens(foreign[f"{_ROLLOUT}.top_k"]),
        "rollout.sampling.top_p": foreign[f"{_ROLLOUT}.top_p"],
        "rollout.sampling.ignore_eos": foreign[f"{_ROLLOUT}.ignore_eos"],
    }


@written_by(lambda run: {f"{_ROLLOUT}.n": getattr(run.algorithm, "rollouts_per_task", None)})
def rollouts(foreign: ForeignValues) -> Mapping[str, Any]:
    """The number of responses per prompt."""
    count, estimator = foreign[f"{_ROLLOUT}.n"], foreign["algorithm.adv_estimator"]
    if switches.is_spin(foreign):
        return {"algorithm.rollouts_per_task": _pair(foreign, count)}
    compared = estimator not in _SINGLE_ROLLOUT_ESTIMATORS and not switches.distillation_alone(foreign)
    if count < 2 and compared:
        raise foreign.error_for(
            f"{_ROLLOUT}.n",
            f"{_ROLLOUT}.n is {count}, but algorithm.adv_estimator={estimator} compares the "
            "responses to one prompt with each other, so it needs two or more; write, for example, "
            f"{_ROLLOUT}.n=8.",
        )
    return {"algorithm.rollouts_per_task": count}


def _pair(foreign: ForeignValues, count: int) -> int:
    """The two responses of the recipe SPIN, which compares neighbors in its batch."""
    if count > 2:
        raise foreign.error_for(
            f"{_ROLLOUT}.n",
            f"{_ROLLOUT}.n is {count}, but verl's recipe SPIN compares responses two by two; write 2, "
            "or a run file with algorithm.type: online_dpo, which compares the best of more with the worst.",
        )
    return 2


def _is_long_enough(foreign: ForeignValues, value: Any) -> bool:
    """Check that supports a maximum sequence length that covers the longest prompt and response."""
    longest = foreign["data.max_prompt_length"] + foreign["data.max_response_length"]
    return value is None or bool(value >= longest)


_NO_REPLAY = (
    "it trains on the rollouts of an earlier run, which other weights sampled, as if they were new, to measure the "
    "trainer's speed; Strop does not replay rollouts from a folder; leave it False, or train on given responses "
    "with strop verl sft"
)
"""Reason and replacement of verl's replay of rollouts."""
_NOT_SKIPPED = "rollouts are never skipped"
_sampling_row = partial(mapped, read=sampling)
_validation_row = partial(mapped, read=tasksets)
_LISTED = (
    placement(
        f"{_ROLLOUT}.name",
        "vllm",
        "the native sampler in the trainer's process",
        value_type=one_of(*_ENGINES),
        supported=lambda foreign, value: serving_engine(foreign) is not None,
        fields=("rollout.engine.type",),
        read=engine,
    ),
    _sampling_row(f"{_ROLLOUT}.temperature", 1.0, "rollout.sampling.temperature"),
    _sampling_row(f"{_ROLLOUT}.top_k", -1, "rollout.sampling.top_k", note="-1 and 0 keep all tokens"),
    _sampling_row(f"{_ROLLOUT}.top_p", 1, "rollout.sampling.top_p", value_type=NUMBER),
    no_effect(
        f"{_ROLLOUT}.prompt_length",
        "${data.max_prompt_length}",
        "unused according to verl 0.3.1's documentation; data.max_prompt_length applies",
    ),
    refused(
        f"{_ROLLOUT}.response_length",
        "${data.max_response_length}",
        "write data.max_response_length, which has the same meaning",
        supported=same_as("data.max_response_length"),
    ),
    placement(
        f"{_ROLLOUT}.dtype",
        "bfloat16",
        "the native sampler computes in the trainer's dtype, bfloat16 by default, and has no float16",
        supported=_supports_dtype,
        value_type=one_of(*_DTYPES, *_HALF_DTYPES, "auto"),
        fields=("rollout.engine.dtype",),
        read=precision,
    ),
    _serving_option("gpu_memory_utilization", 0.5, native=never, value_type=NUMBER),
    _sampling_row(
        f"{_ROLLOUT}.ignore_eos", False, "rollout.sampling.ignore_eos", "data.eval.0.sampling.ignore_eos"
    ),
    _serving_option("enforce_eager", True, native=only(True)),
    RELEASE,
    placement(
        f"{_ROLLOUT}.load_format",
        "dummy_dtensor",
        "the sampler has the trainer's weights from the start",
        supported=_with_serving(never),
    ),
    _serving_option("tensor_model_parallel_size", 2, native=only(1), instead=NO_SHARDS),
    _serving_option("max_num_batched_tokens", 8192, native=never, value_type=nullable(INTEGER)),
    mapped(
        f"{_ROLLOUT}.max_num_seqs",
        1024,
        "rollout.engine.max_sequences",
        "rollout.engine.max_num_seqs",
        "rollout.engine.max_running_requests",
        read=engine,
    ),
    *log_prob_rows(_ROLLOUT),
    _sampling_row(
        f"{_ROLLOUT}.do_sample",
        True,
        "rollout.sampling.temperature",
        note="False means greedy responses, of which each prompt has one",
    ),
    placement(
        f"{_ROLLOUT}.engine_kwargs.vllm.swap_space",
        None,
        "vLLM has no swap space since its engine V1: it computes preempted sequences again",
        supported=_with_serving(only(None)),
        inactive=switches.vllm,
    ),
    placement(
        f"{_ROLLOUT}.engine_kwargs.sglang.attention_backend",
        None,
        NATIVE_SAMPLER,
        supported=_with_serving(only(None)),
        value_type=nullable(STRING),
        inactive=switches.sglang,
        fields=("rollout.engine.attention_backend",),
        read=engine,
    ),
    mapped(
        f"{_ROLLOUT}.n",
        1,
        "algorithm.rollouts_per_task",
        read=rollouts,
        note="two or more, except for gae, reinforce_plus_plus and remax",
    ),
    _validation_row(
        f"{_ROLLOUT}.val_kwargs.top_k", -1, "data.eval.0.sampling.top_k", inactive=switches.sampled_validation
    ),
    _validation_row(
        f"{_ROLLOUT}.val_kwargs.top_p",
        1.0,
        "data.eval.0.sampling.top_p",
        inactive=switches.sampled_validation,
    ),
    _validation_row(
        f"{_ROLLOUT}.val_kwargs.temperature",
        0,
        "data.eval.0.sampling.temperature",
        value_type=NUMBER,
        inactive=switches.sampled_validation,
    ),
    _validation_row(f"{_ROLLOUT}.val_kwargs.n", 1, "data.eval.0.rollouts_per_task"),
    _validation_row(
        f"{_ROLLOUT}.val_kwargs.do_sample",
        False,
        "data.eval.0.sampling.temperature",
        note="False means greedy sampling at any temperature",
    ),
)
_UNLISTED = not_on_page(
    DATA_PARALLEL,
    _serving_option("enable_chunked_prefill", True, native=only(False)),
    _serving_option("max_model_len", None, native=_is_long_enough, value_type=nullable(INTEGER)),
    _serving_option("enable_prefix_caching", True, native=only(True), value_type=ANY),
    _serving_option("pipeline_model_parallel_size", 1, native=only(1), value_type=ANY, instead=NO_SHARDS),
    _serving_option(
        "quantization",
        None,
        native=only(None),
        value_type=ANY,
        instead="the sampler uses the trainer's weights, without quantization",
    ),
    placement(
        f"{_ROLLOUT}.mode",
        "sync",
        "an engine's requests are always asynchronous, and the native sampler runs in the trainer's process",
        value_type=one_of("sync", "async"),
        supported=_with_serving(only("sync")),
    ),
    placement(
        f"{_ROLLOUT}.disable_log_stats",
        True,
        "an engine's own statistics are not printed",
        supported=_with_serving(only(True)),
    ),
    placement(f"{_ROLLOUT}.layered_summon", False, NATIVE_SAMPLER, supported=only(False)),
    *(
        default_only(f"{_ROLLOUT}.{name}", default, NATIVE_SAMPLER)
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
    *(
        default_only(f"{_ROLLOUT}.{name}", 1, "experts are divided like the other layers of an engine")
        for name in ("expert_parallel_size", "moe_tensor_parallel_size")
    ),
    default_only(f"{_ROLLOUT}.nnodes", 0, ONE_MACHINE),
    default_only(f"{_ROLLOUT}.n_gpus_per_node", UNSET, ONE_MACHINE),
    default_only(f"{_ROLLOUT}.quantization_config_file", None, "the sampler uses the trainer's weights"),
    default_only(f"{_ROLLOUT}.enable_rollout_routing_replay", False, ONE_ROUTING),
    placement_section(f"{_ROLLOUT}.engine_kwargs", NATIVE_SAMPLER),
    placement_section(f"{_ROLLOUT}.checkpoint_engine", "the sampler reads the trainer's weights directly"),
    placement_section(f"{_ROLLOUT}.disaggregation", NATIVE_SAMPLER),
    placement_section(f"{_ROLLOUT}.layer_name_map", NATIVE_SAMPLER),
    placement_section(f"{_ROLLOUT}.server", NATIVE_SAMPLER),
    default_only(f"{_ROLLOUT}.sglang_rollout_mode", UNSET, NATIVE_SAMPLER),
    placement_section(f"{_ROLLOUT}.mtp", "tokens are sampled one by one, from the same distribution"),
    no_effect(f"{_ROLLOUT}.qat.*", UNSET, "quantization-aware training is off"),
    no_effect(f"{_ROLLOUT}.profiler.*", UNSET, NO_PROFILER),
    no_effect(f"{_ROLLOUT}.prometheus.*", UNSET, "the metrics are in the run folder"),
    no_effect(f"{_ROLLOUT}.trace.*", UNSET, "rollouts are recorded in the run folder"),
    no_effect(f"{_ROLLOUT}.seed", UNSET, ONE_SEED),
    placement(f"{_ROLLOUT}.router_config_path", None, "a pool of engines distributes its requests itself"),
    no_effect(f"{_ROLLOUT}.full_determinism", UNSET, "a run is always deterministic"),
    no_effect(f"{_ROLLOUT}.calculate_log_probs", UNSET, "the sampler always records them"),
    refused(
        f"{_ROLLOUT}.over_sample_rate",
        0,
        "verl ends the slowest responses of a step unfinished, as empty ones; Strop finishes every response; write 0, "
        "or bound a rollout's time by rollout.timeout_seconds in a run file",
    ),
    refused(f"{_ROLLOUT}.skip_rollout", False, _NO_REPLAY),
    no_effect(f"{_ROLLOUT}.skip_dump_dir", UNSET, _NOT_SKIPPED),
    refused(
        f"{_ROLLOUT}.use_fire_sampling",
        False,
        "Strop samples the first token like all others; leave it False",
    ),
    no_effect(
        f"{_ROLLOUT}.trust_remote_code",
        UNSET,
        "verl reads data.trust_remote_code and actor_rollout_ref.model.trust_remote_code",
    ),
    mapped(
        f"{_ROLLOUT}.limit_images",
        None,
        "data.images.max_images",
        value_type=nullable(INTEGER),
        note="a row with more images is an error",
    ),
    *(
        placement(
            f"{_ROLLOUT}.engine_kwargs.{name}.*",
            UNSET,
            NATIVE_SAMPLER,
            supported=_with_serving(never),
            inactive=inactive,
            fields=("rollout.engine.engine_kwargs",),
            read=engine,
        )
        for name, inactive in (("vllm", switches.vllm), ("sglang", switches.sglang))
    ),
    *(
        refused(f"skip.{name}.enable", False, _NO_REPLAY)
        for name in ("rollout", "rollout_tq", "async_rollout")
    ),
    no_effect("skip.*", UNSET, "rollouts are never skipped"),
    refused(f"{_ROLLOUT}.skip.enable", False, _NO_REPLAY),
    no_effect(f"{_ROLLOUT}.skip.*", UNSET, _NOT_SKIPPED),
)
ROWS = (*_LISTED, *_UNLISTED)
