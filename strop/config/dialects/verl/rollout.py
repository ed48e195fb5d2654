"""verl's `actor_rollout_ref.rollout`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.config.dialects.row import (
    NUMBER,
    TEXT,
    UNSET,
    WHOLE,
    beyond_the_page,
    mapped,
    never,
    no_effect,
    one_of,
    only,
    or_null,
    placement,
    refused,
    same_as,
    written_by,
)
from strop.config.dialects.theirs import Theirs
from strop.config.dialects.verl import switches
from strop.config.dialects.verl.data import all_tokens, tasksets
from strop.config.schema import Run

_NATIVE = "the native sampler needs none of it"
_AS_TRAINED = "log-probs go through the model in the trainer's micro-batches"
_ALONE = ("gae", "reinforce_plus_plus", "remax")
"""Estimators that learn from one answer to a prompt."""
_DTYPES = {
    "bfloat16": "bfloat16",
    "bf16": "bfloat16",
    "float32": "float32",
    "fp32": "float32",
    "float": "float32",
}


def write_sampling(run: Run) -> Mapping[str, Any]:
    """-1 keeps all tokens."""
    rollout, said = "actor_rollout_ref.rollout", run.rollout.sampling
    return {
        f"{rollout}.temperature": said.temperature,
        f"{rollout}.top_k": said.top_k or -1,
        f"{rollout}.top_p": said.top_p,
        f"{rollout}.ignore_eos": said.ignore_eos,
    }


@written_by(write_sampling)
def sampling(theirs: Theirs) -> Mapping[str, Any]:
    """How answers to train on are drawn."""
    rollout = "actor_rollout_ref.rollout"
    return {
        "rollout.sampling.temperature": theirs[f"{rollout}.temperature"],
        "rollout.sampling.top_k": all_tokens(theirs[f"{rollout}.top_k"]),
        "rollout.sampling.top_p": theirs[f"{rollout}.top_p"],
        "rollout.sampling.ignore_eos": theirs[f"{rollout}.ignore_eos"],
    }


def write_precision(run: Run) -> Mapping[str, Any]:
    """The sampler's own type, where it has one."""
    kind = run.rollout.engine.dtype
    named = run.model.compute_dtype or run.model.dtype if kind == "model" else kind
    return {"actor_rollout_ref.rollout.dtype": named}


@written_by(write_precision)
def precision(theirs: Theirs) -> Mapping[str, Any]:
    """The native sampler has bfloat16 and float32; in place of another type it takes the trainer's."""
    return {"rollout.engine.dtype": _DTYPES.get(theirs["actor_rollout_ref.rollout.dtype"], "model")}


def write_rollouts(run: Run) -> Mapping[str, Any]:
    """Answers to each prompt."""
    return {"actor_rollout_ref.rollout.n": getattr(run.algorithm, "rollouts_per_task", None)}


@written_by(write_rollouts)
def rollouts(theirs: Theirs) -> Mapping[str, Any]:
    """Answers to each prompt."""
    count, estimator = theirs["actor_rollout_ref.rollout.n"], theirs["algorithm.adv_estimator"]
    if count < 2 and estimator not in _ALONE:
        raise theirs.fault(
            "actor_rollout_ref.rollout.n",
            f"actor_rollout_ref.rollout.n is {count}, but {estimator} compares the answers to one "
            "prompt with one another, so it needs two or more; write actor_rollout_ref.rollout.n=8, say.",
        )
    return {"algorithm.rollouts_per_task": count}


def fits_length(theirs: Theirs, value: Any) -> bool:
    """A longest sequence that leaves room for prompt and answer cuts nothing."""
    longest = theirs["data.max_prompt_length"] + theirs["data.max_response_length"]
    return value is None or bool(value >= longest)


ROWS = (
    placement(
        "actor_rollout_ref.rollout.name",
        "vllm",
        "the native sampler, in the trainer's process",
        kind=one_of("vllm", "sglang", "hf"),
        can=never,
    ),
    mapped("actor_rollout_ref.rollout.temperature", 1.0, "rollout.sampling.temperature", read=sampling),
    mapped(
        "actor_rollout_ref.rollout.top_k",
        -1,
        "rollout.sampling.top_k",
        read=sampling,
        note="-1 and 0 keep all",
    ),
    mapped("actor_rollout_ref.rollout.top_p", 1, "rollout.sampling.top_p", read=sampling, kind=NUMBER),
    no_effect(
        "actor_rollout_ref.rollout.prompt_length",
        "${data.max_prompt_length}",
        "the page says that it is not used; data.max_prompt_length counts",
    ),
    refused(
        "actor_rollout_ref.rollout.response_length",
        "${data.max_response_length}",
        "write data.max_response_length, which is the same thing",
        can=same_as("data.max_response_length"),
    ),
    placement(
        "actor_rollout_ref.rollout.dtype",
        "bfloat16",
        "the sampler takes the trainer's precision",
        can=only(*_DTYPES),
        kind=one_of(*_DTYPES, "float16", "fp16", "half", "auto"),
        ours=("rollout.engine.dtype",),
        read=precision,
    ),
    placement("actor_rollout_ref.rollout.gpu_memory_utilization", 0.5, _NATIVE, can=never, kind=NUMBER),
    mapped(
        "actor_rollout_ref.rollout.ignore_eos",
        False,
        "rollout.sampling.ignore_eos",
        "data.eval.0.sampling.ignore_eos",
        read=sampling,
    ),
    placement("actor_rollout_ref.rollout.enforce_eager", True, _NATIVE, can=only(True)),
    placement("actor_rollout_ref.rollout.free_cache_engine", True, _NATIVE, can=only(True)),
    placement(
        "actor_rollout_ref.rollout.load_format",
        "dummy_dtensor",
        "the sampler takes the trainer's weights as they are",
        can=never,
    ),
    placement(
        "actor_rollout_ref.rollout.tensor_model_parallel_size",
        2,
        "one process holds the whole model",
        can=only(1),
    ),
    placement(
        "actor_rollout_ref.rollout.max_num_batched_tokens",
        8192,
        _NATIVE,
        kind=or_null(WHOLE),
        can=never,
    ),
    mapped("actor_rollout_ref.rollout.max_num_seqs", 1024, "rollout.engine.max_sequences"),
    placement(
        "actor_rollout_ref.rollout.log_prob_micro_batch_size",
        None,
        _AS_TRAINED,
        kind=or_null(WHOLE),
        can=only(None),
        off=switches.rollout_fixed,
    ),
    placement(
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu",
        16,
        _AS_TRAINED,
        can=same_as("actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"),
        off=switches.rollout_fixed,
    ),
    placement(
        "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz",
        "${actor_rollout_ref.actor.use_dynamic_bsz}",
        _AS_TRAINED,
        can=same_as("actor_rollout_ref.actor.use_dynamic_bsz"),
    ),
    placement(
        "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu",
        "${actor_rollout_ref.actor.ppo_max_token_len_per_gpu}",
        _AS_TRAINED,
        can=same_as("actor_rollout_ref.actor.ppo_max_token_len_per_gpu"),
        off=switches.rollout_dynamic,
    ),
    refused(
        "actor_rollout_ref.rollout.do_sample",
        True,
        "greedy answers to one prompt are all the same, and nothing can be learned from them",
    ),
    placement(
        "actor_rollout_ref.rollout.engine_kwargs.vllm.swap_space",
        None,
        _NATIVE,
        can=only(None),
        off=switches.vllm,
    ),
    placement(
        "actor_rollout_ref.rollout.engine_kwargs.sglang.attention_backend",
        None,
        _NATIVE,
        can=only(None),
        kind=or_null(TEXT),
        off=switches.sglang,
    ),
    mapped(
        "actor_rollout_ref.rollout.n",
        1,
        "algorithm.rollouts_per_task",
        read=rollouts,
        note="two or more, but for gae, reinforce_plus_plus and remax",
    ),
    mapped(
        "actor_rollout_ref.rollout.val_kwargs.top_k",
        -1,
        "data.eval.0.sampling.top_k",
        read=tasksets,
        off=switches.sampled_validation,
    ),
    mapped(
        "actor_rollout_ref.rollout.val_kwargs.top_p",
        1.0,
        "data.eval.0.sampling.top_p",
        read=tasksets,
        off=switches.sampled_validation,
    ),
    mapped(
        "actor_rollout_ref.rollout.val_kwargs.temperature",
        0,
        "data.eval.0.sampling.temperature",
        read=tasksets,
        kind=NUMBER,
        off=switches.sampled_validation,
    ),
    mapped("actor_rollout_ref.rollout.val_kwargs.n", 1, "data.eval.0.rollouts_per_task", read=tasksets),
    mapped(
        "actor_rollout_ref.rollout.val_kwargs.do_sample",
        False,
        "data.eval.0.sampling.temperature",
        read=tasksets,
        note="False is greedy, whatever the temperature",
    ),
    *beyond_the_page(
        placement("actor_rollout_ref.rollout.enable_chunked_prefill", True, _NATIVE, can=only(False)),
        placement(
            "actor_rollout_ref.rollout.max_model_len",
            None,
            "prompt and answer have the room that data.max_*_length give them",
            kind=or_null(WHOLE),
            can=fits_length,
        ),
        placement(
            "actor_rollout_ref.rollout.mode",
            "sync",
            "the native sampler, in the trainer's process",
            kind=one_of("sync", "async"),
            can=only("sync"),
        ),
        placement("actor_rollout_ref.rollout.disable_log_stats", True, _NATIVE, can=only(True)),
        placement("actor_rollout_ref.rollout.layered_summon", False, _NATIVE, can=only(False)),
        placement(
            "actor_rollout_ref.rollout.engine_kwargs.vllm.*", UNSET, _NATIVE, can=never, off=switches.vllm
        ),
        placement(
            "actor_rollout_ref.rollout.engine_kwargs.sglang.*", UNSET, _NATIVE, can=never, off=switches.sglang
        ),
        refused(
            "actor_rollout_ref.rollout.multi_turn.enable",
            False,
            "verl's tool files are not read; leave it False; a run file has `rollout.workflow: tools`",
        ),
        refused(
            "actor_rollout_ref.rollout.multi_turn.*",
            UNSET,
            "verl's tool files are not read; a run file has `rollout.workflow: tools`",
            can=never,
            off=switches.multi_turn,
        ),
    ),
)
