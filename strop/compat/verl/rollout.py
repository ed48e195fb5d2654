"""Ledger rows of verl's `actor_rollout_ref.rollout`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.compat.ledger.key_mapping import (
    UNSET,
    ForeignValues,
    mapped,
    never,
    no_effect,
    not_on_page,
    only,
    placement,
    refused,
    same_as,
    written_by,
)
from strop.compat.ledger.placement_notes import NATIVE_SAMPLER, NO_SHARDS, TRAINER_MICRO_BATCHES
from strop.compat.ledger.value_types import INTEGER, NUMBER, STRING, nullable, one_of
from strop.compat.verl import gpus, switches
from strop.compat.verl.data import all_tokens, tasksets
from strop.compat.verl.serving_engine import (
    DTYPES,
    HALF_DTYPES,
    engine,
    precision,
    serving_engine,
    serving_option,
    supports_dtype,
    with_serving,
)
from strop.config.schema import Run

ENGINES = ("vllm", "sglang", "hf", "trtllm", "vllm_omni", "naive")
"""Names of rollouts in verl's versions."""
_SINGLE_ROLLOUT_ESTIMATORS = ("gae", *switches.REWARD_OF_ONE, "reinforce_plus_plus", "remax")
"""Estimators that can learn from a single response per prompt."""


def write_sampling(run: Run) -> Mapping[str, Any]:
    """Write the sampling options; a top-k of -1 keeps all tokens."""
    rollout, options = "actor_rollout_ref.rollout", run.rollout.sampling
    return {
        f"{rollout}.do_sample": options.temperature > 0,
        f"{rollout}.temperature": options.temperature or 1.0,
        f"{rollout}.top_k": options.top_k or -1,
        f"{rollout}.top_p": options.top_p,
        f"{rollout}.ignore_eos": options.ignore_eos,
    }


@written_by(write_sampling)
def sampling(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the sampling options of training responses; `do_sample: False` means greedy ones at any temperature. Several
    greedy responses to a prompt are refused."""
    rollout = "actor_rollout_ref.rollout"
    count, samples = foreign[f"{rollout}.n"], foreign[f"{rollout}.do_sample"]
    if not samples and (count > 1 or foreign["algorithm.adv_estimator"] == "remax"):
        others = (
            "the one with which remax compares it" if count == 1 else f"the other {count - 1} of its prompt"
        )
        raise foreign.error_for(
            f"{rollout}.do_sample",
            f"{rollout}.do_sample is False, and a greedy response is identical to {others}, so that nothing "
            f"can be learned; write {rollout}.do_sample=True, or one response per prompt with an estimator that needs "
            "no others, such as reinforce_plus_plus.",
        )
    return {
        "rollout.sampling.temperature": foreign[f"{rollout}.temperature"] if samples else 0.0,
        "rollout.sampling.top_k": all_tokens(foreign[f"{rollout}.top_k"]),
        "rollout.sampling.top_p": foreign[f"{rollout}.top_p"],
        "rollout.sampling.ignore_eos": foreign[f"{rollout}.ignore_eos"],
    }


def write_rollouts(run: Run) -> Mapping[str, Any]:
    """The number of responses per prompt."""
    return {"actor_rollout_ref.rollout.n": getattr(run.algorithm, "rollouts_per_task", None)}


@written_by(write_rollouts)
def rollouts(foreign: ForeignValues) -> Mapping[str, Any]:
    """The number of responses per prompt."""
    count, estimator = foreign["actor_rollout_ref.rollout.n"], foreign["algorithm.adv_estimator"]
    if switches.is_spin(foreign):
        return {"algorithm.rollouts_per_task": _pair(foreign, count)}
    compared = estimator not in _SINGLE_ROLLOUT_ESTIMATORS and not switches.distillation_alone(foreign)
    if count < 2 and compared:
        raise foreign.error_for(
            "actor_rollout_ref.rollout.n",
            f"actor_rollout_ref.rollout.n is {count}, but algorithm.adv_estimator={estimator} compares the "
            "responses to one prompt with each other, so it needs two or more; write, for example, "
            "actor_rollout_ref.rollout.n=8.",
        )
    return {"algorithm.rollouts_per_task": count}


def _pair(foreign: ForeignValues, count: int) -> int:
    """The two responses of the recipe SPIN, which compares neighbors in its batch."""
    if count > 2:
        raise foreign.error_for(
            "actor_rollout_ref.rollout.n",
            f"actor_rollout_ref.rollout.n is {count}, but verl's recipe SPIN compares responses two by two; write 2, "
            "or a run file with algorithm.type: online_dpo, which compares the best of more with the worst.",
        )
    return 2


def is_long_enough(foreign: ForeignValues, value: Any) -> bool:
    """Check that supports a maximum sequence length that covers the longest prompt and response."""
    longest = foreign["data.max_prompt_length"] + foreign["data.max_response_length"]
    return value is None or bool(value >= longest)


ROWS = (
    placement(
        "actor_rollout_ref.rollout.name",
        "vllm",
        "the native sampler in the trainer's process",
        value_type=one_of(*ENGINES),
        supported=lambda foreign, value: serving_engine(foreign) is not None,
        fields=("rollout.engine.type",),
        read=engine,
    ),
    mapped("actor_rollout_ref.rollout.temperature", 1.0, "rollout.sampling.temperature", read=sampling),
    mapped(
        "actor_rollout_ref.rollout.top_k",
        -1,
        "rollout.sampling.top_k",
        read=sampling,
        note="-1 and 0 keep all tokens",
    ),
    mapped("actor_rollout_ref.rollout.top_p", 1, "rollout.sampling.top_p", read=sampling, value_type=NUMBER),
    no_effect(
        "actor_rollout_ref.rollout.prompt_length",
        "${data.max_prompt_length}",
        "unused according to the page; data.max_prompt_length applies",
    ),
    refused(
        "actor_rollout_ref.rollout.response_length",
        "${data.max_response_length}",
        "write data.max_response_length, which has the same meaning",
        supported=same_as("data.max_response_length"),
    ),
    placement(
        "actor_rollout_ref.rollout.dtype",
        "bfloat16",
        "the native sampler computes in the trainer's dtype, bfloat16 by default, and has no float16",
        supported=supports_dtype,
        value_type=one_of(*DTYPES, *HALF_DTYPES, "auto"),
        fields=("rollout.engine.dtype",),
        read=precision,
    ),
    serving_option("gpu_memory_utilization", 0.5, native=never, value_type=NUMBER),
    mapped(
        "actor_rollout_ref.rollout.ignore_eos",
        False,
        "rollout.sampling.ignore_eos",
        "data.eval.0.sampling.ignore_eos",
        read=sampling,
    ),
    serving_option("enforce_eager", True, native=only(True)),
    gpus.RELEASE,
    placement(
        "actor_rollout_ref.rollout.load_format",
        "dummy_dtensor",
        "the sampler has the trainer's weights from the start",
        supported=with_serving(never),
    ),
    serving_option("tensor_model_parallel_size", 2, native=only(1), instead=NO_SHARDS),
    serving_option("max_num_batched_tokens", 8192, native=never, value_type=nullable(INTEGER)),
    mapped(
        "actor_rollout_ref.rollout.max_num_seqs",
        1024,
        "rollout.engine.max_sequences",
        "rollout.engine.max_num_seqs",
        "rollout.engine.max_running_requests",
        read=engine,
    ),
    placement(
        "actor_rollout_ref.rollout.log_prob_micro_batch_size",
        None,
        TRAINER_MICRO_BATCHES,
        value_type=nullable(INTEGER),
        supported=only(None),
        inactive=switches.rollout_fixed,
    ),
    placement(
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu",
        16,
        TRAINER_MICRO_BATCHES,
        supported=same_as("actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"),
        inactive=switches.rollout_fixed,
    ),
    placement(
        "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz",
        "${actor_rollout_ref.actor.use_dynamic_bsz}",
        TRAINER_MICRO_BATCHES,
        supported=same_as("actor_rollout_ref.actor.use_dynamic_bsz"),
    ),
    placement(
        "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu",
        "${actor_rollout_ref.actor.ppo_max_token_len_per_gpu}",
        TRAINER_MICRO_BATCHES,
        supported=same_as("actor_rollout_ref.actor.ppo_max_token_len_per_gpu"),
        inactive=switches.rollout_dynamic,
    ),
    mapped(
        "actor_rollout_ref.rollout.do_sample",
        True,
        "rollout.sampling.temperature",
        read=sampling,
        note="False means greedy responses, of which each prompt has one",
    ),
    placement(
        "actor_rollout_ref.rollout.engine_kwargs.vllm.swap_space",
        None,
        "vLLM has no swap space since its engine V1: it computes preempted sequences again",
        supported=with_serving(only(None)),
        inactive=switches.vllm,
    ),
    placement(
        "actor_rollout_ref.rollout.engine_kwargs.sglang.attention_backend",
        None,
        NATIVE_SAMPLER,
        supported=with_serving(only(None)),
        value_type=nullable(STRING),
        inactive=switches.sglang,
        fields=("rollout.engine.attention_backend",),
        read=engine,
    ),
    mapped(
        "actor_rollout_ref.rollout.n",
        1,
        "algorithm.rollouts_per_task",
        read=rollouts,
        note="two or more, except for gae, reinforce_plus_plus and remax",
    ),
    mapped(
        "actor_rollout_ref.rollout.val_kwargs.top_k",
        -1,
        "data.eval.0.sampling.top_k",
        read=tasksets,
        inactive=switches.sampled_validation,
    ),
    mapped(
        "actor_rollout_ref.rollout.val_kwargs.top_p",
        1.0,
        "data.eval.0.sampling.top_p",
        read=tasksets,
        inactive=switches.sampled_validation,
    ),
    mapped(
        "actor_rollout_ref.rollout.val_kwargs.temperature",
        0,
        "data.eval.0.sampling.temperature",
        read=tasksets,
        value_type=NUMBER,
        inactive=switches.sampled_validation,
    ),
    mapped("actor_rollout_ref.rollout.val_kwargs.n", 1, "data.eval.0.rollouts_per_task", read=tasksets),
    mapped(
        "actor_rollout_ref.rollout.val_kwargs.do_sample",
        False,
        "data.eval.0.sampling.temperature",
        read=tasksets,
        note="False means greedy sampling at any temperature",
    ),
    *not_on_page(
        serving_option("enable_chunked_prefill", True, native=only(False)),
        serving_option("max_model_len", None, native=is_long_enough, value_type=nullable(INTEGER)),
        placement(
            "actor_rollout_ref.rollout.mode",
            "sync",
            "an engine's requests are always asynchronous, and the native sampler runs in the trainer's process",
            value_type=one_of("sync", "async"),
            supported=with_serving(only("sync")),
        ),
        placement(
            "actor_rollout_ref.rollout.disable_log_stats",
            True,
            "an engine's own statistics are not printed",
            supported=with_serving(only(True)),
        ),
        placement("actor_rollout_ref.rollout.layered_summon", False, NATIVE_SAMPLER, supported=only(False)),
        placement(
            "actor_rollout_ref.rollout.engine_kwargs.vllm.*",
            UNSET,
            NATIVE_SAMPLER,
            supported=with_serving(never),
            inactive=switches.vllm,
            fields=("rollout.engine.engine_kwargs",),
            read=engine,
        ),
        placement(
            "actor_rollout_ref.rollout.engine_kwargs.sglang.*",
            UNSET,
            NATIVE_SAMPLER,
            supported=with_serving(never),
            inactive=switches.sglang,
            fields=("rollout.engine.engine_kwargs",),
            read=engine,
        ),
    ),
)
