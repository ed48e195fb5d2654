"""TRL's GRPO: GRPOConfig with the arguments of `trl grpo`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from strop.compat.ledger.key_mapping import (
    ANY,
    BOOLEAN,
    INTEGER,
    MAPPING,
    NATIVE_SAMPLER,
    NUMBER,
    NUMBER_LIST,
    STRING_OR_LIST,
    ForeignValues,
    Ledger,
    ValueConversion,
    mapped,
    no_effect,
    null_means,
    nullable,
    one_of,
    only,
    placement,
    refused,
    unless,
    written_by,
)
from strop.compat.trl import rewards
from strop.compat.trl.model_and_data import (
    INITIAL_REFERENCE_ROWS,
    MODEL_ROWS,
    TEXT_PROMPTS,
    dataset_rows,
    dropout_row,
    image_columns,
    image_places,
    taskset,
    write_dataset,
)
from strop.compat.trl.training_arguments import (
    batch_rows,
    device_batch,
    is_evaluated,
    training_rows,
    update_batch,
)
from strop.compat.trl.vllm import VLLM_CORRECTION, VLLM_ENGINE, context_length
from strop.config.schema import Run
from strop.config.schema.algorithm import GrpoConfig
from strop.config.schema.policy_gradient import PolicyGradientConfig
from strop.config.schema.policy_loss import CispoLossConfig, ClippedLossConfig, GspoLossConfig, SapoLossConfig
from strop.config.schema.rollout import VllmEngineConfig
from strop.errors import ConfigError

_LOSSES = ("dapo", "grpo", "dr_grpo", "bnpo", "cispo", "sapo", "luspo", "vespo")
"""TRL's losses; Strop has those of `_AGGREGATIONS`."""
_AGGREGATIONS = {
    "dapo": "token-mean",
    "bnpo": "token-mean",
    "cispo": "token-mean",
    "grpo": "seq-mean-token-mean",
    "sapo": "seq-mean-token-mean",
    "dr_grpo": "seq-mean-token-sum-norm",
}
_CLIPPED = {"token-mean": "dapo", "seq-mean-token-mean": "grpo", "seq-mean-token-sum-norm": "dr_grpo"}
_STD_EPSILON = 1e-4
_PROMPT_TOKENS = 1024
_NULL_IS_EMPTY = ValueConversion(lambda value: value or {}, lambda value: dict(value) or None)


def write_loss(run: Run) -> Mapping[str, Any]:
    """Write the loss. Raises ConfigError for an algorithm that GRPOConfig does not have."""
    algorithm = run.algorithm
    if not isinstance(algorithm, GrpoConfig):
        raise ConfigError(f"TRL's GRPOConfig has no algorithm {algorithm.type}.")
    section = algorithm.policy_loss
    if isinstance(section, CispoLossConfig):
        return {"loss_type": "cispo", "epsilon_high": 1 + section.clip_high}
    if isinstance(section, SapoLossConfig):
        temperatures = {"sapo_temperature_pos": section.tau_pos, "sapo_temperature_neg": section.tau_neg}
        return {"loss_type": "sapo", **temperatures}
    if not isinstance(section, ClippedLossConfig | GspoLossConfig):
        raise ConfigError(f"TRL's GRPOConfig has no policy loss {section.type}.")
    per_sequence = isinstance(section, GspoLossConfig)
    high = None if section.clip_high == section.clip_low else section.clip_high
    return {
        "loss_type": _CLIPPED.get(algorithm.aggregation),
        "importance_sampling_level": "sequence" if per_sequence else "token",
        "epsilon": section.clip_low,
        "epsilon_high": high,
        "delta": section.dual_clip if isinstance(section, ClippedLossConfig) else None,
    }


@written_by(write_loss)
def loss(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the policy loss and how the losses of tokens become one number."""
    name, level = foreign["loss_type"], foreign["importance_sampling_level"]
    if name not in _AGGREGATIONS:
        raise foreign.error_for(
            "loss_type",
            f"loss_type {name} is a loss that Strop does not have; write one of {', '.join(_AGGREGATIONS)}.",
        )
    if name == "bnpo" and foreign["gradient_accumulation_steps"] > 1:
        raise foreign.error_for(
            "loss_type",
            "loss_type bnpo averages over the tokens of each micro-batch, so its gradient depends on "
            "gradient_accumulation_steps; write dapo, which averages over those of the update.",
        )
    if level == "sequence" and name != "grpo":
        raise foreign.error_for(
            "importance_sampling_level",
            f"importance_sampling_level sequence is supported with loss_type grpo, as in the paper, and "
            f"loss_type is {name}; write loss_type grpo.",
        )
    settings = {"algorithm.type": "grpo", "algorithm.aggregation": _AGGREGATIONS[name]}
    low, high = foreign["epsilon"], foreign["epsilon_high"]
    high = low if high is None else high
    if name == "cispo":
        if high < 1:
            raise foreign.error_for(
                "epsilon_high",
                f"epsilon_high is {high}, the maximum ratio of cispo in TRL, and would truncate every ratio; "
                "write 5.0, for example.",
            )
        return settings | {"algorithm.policy_loss.type": "cispo", "algorithm.policy_loss.clip_high": high - 1}
    if name == "sapo":
        return settings | {
            "algorithm.policy_loss.type": "sapo",
            "algorithm.policy_loss.tau_pos": foreign["sapo_temperature_pos"],
            "algorithm.policy_loss.tau_neg": foreign["sapo_temperature_neg"],
        }
    settings |= {"algorithm.policy_loss.clip_low": low, "algorithm.policy_loss.clip_high": high}
    if level == "sequence":
        return settings | {"algorithm.policy_loss.type": "gspo"}
    return settings | {
        "algorithm.policy_loss.type": "clip",
        "algorithm.policy_loss.dual_clip": foreign["delta"],
    }


def write_kl(run: Run) -> Mapping[str, Any]:
    """Write the KL coefficient and whether the term is weighted by the ratio; 0 is no KL term."""
    term = run.algorithm.kl_loss if isinstance(run.algorithm, PolicyGradientConfig) else None
    if term is None:
        return {"beta": 0.0}
    return {"beta": term.coef, "use_bias_correction_kl": term.weight_by_ratio}


@written_by(write_kl)
def kl(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the KL term, which TRL weighs by the ratio of the loss; with a `beta` of 0 there is none and no reference
    model."""
    if foreign["beta"] == 0:
        return {}
    settings = {
        "algorithm.kl_loss.estimator": "k3",
        "algorithm.kl_loss.coef": foreign["beta"],
        "algorithm.kl_loss.weight_by_ratio": foreign["use_bias_correction_kl"],
    }
    if foreign["use_bias_correction_kl"] and foreign["importance_sampling_level"] == "sequence":
        settings["algorithm.kl_loss.ratio_level"] = "sequence"
    return settings


def without_kl(foreign: ForeignValues) -> str | None:
    """The options of the KL term have no effect without it."""
    return "beta is 0" if foreign["beta"] == 0 else None


def write_advantages(run: Run) -> Mapping[str, Any]:
    """Write what divides the advantages."""
    algorithm = run.algorithm
    if not isinstance(algorithm, GrpoConfig):
        return {}
    over = "batch" if algorithm.std_over == "step" else "group"
    return {"scale_rewards": over if algorithm.divide_by_std else "none"}


@written_by(write_advantages)
def advantages(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read what divides the advantages: the standard deviation of the group or of the batch, or nothing."""
    scale = {True: "group", False: "none"}.get(foreign["scale_rewards"], foreign["scale_rewards"])
    return {
        "algorithm.divide_by_std": scale != "none",
        "algorithm.std_over": "step" if scale == "batch" else "group",
        "algorithm.std_epsilon": _STD_EPSILON,
    }


_SAPO = unless("loss_type", "sapo")
_row = partial(mapped, read=loss)
_LOSS = (
    mapped("beta", 0.0, "algorithm.kl_loss.coef", read=kl, note="0 is no KL term"),
    mapped(
        "use_bias_correction_kl",
        True,
        "algorithm.kl_loss.weight_by_ratio",
        "algorithm.kl_loss.ratio_level",
        read=kl,
        inactive=without_kl,
        note="the ratio of importance_sampling_level",
    ),
    _row(
        "loss_type",
        "dapo",
        "algorithm.policy_loss.type",
        "algorithm.aggregation",
        value_type=one_of(*_LOSSES),
    ),
    _row(
        "importance_sampling_level",
        "token",
        "algorithm.policy_loss.type",
        value_type=one_of("token", "sequence"),
    ),
    _row("epsilon", 0.2, "algorithm.policy_loss.clip_low"),
    _row(
        "epsilon_high",
        None,
        "algorithm.policy_loss.clip_high",
        value_type=nullable(NUMBER),
        note="null means epsilon; under cispo the maximum ratio",
    ),
    _row(
        "delta",
        None,
        "algorithm.policy_loss.dual_clip",
        value_type=nullable(NUMBER),
        inactive=unless("loss_type", "dapo", "grpo", "dr_grpo", "bnpo"),
    ),
    _row("sapo_temperature_pos", 1.0, "algorithm.policy_loss.tau_pos", inactive=_SAPO),
    _row("sapo_temperature_neg", 1.05, "algorithm.policy_loss.tau_neg", inactive=_SAPO),
    *(
        no_effect(f"vespo_{name}", default, "it is an option of the loss vespo, which Strop does not have")
        for name, default in (("k_pos", 2.0), ("lambda_pos", 3.0), ("k_neg", 3.0), ("lambda_neg", 2.0))
    ),
    mapped(
        "scale_rewards",
        "group",
        "algorithm.divide_by_std",
        "algorithm.std_over",
        read=advantages,
        value_type=one_of("group", "batch", "none", True, False),
    ),
    refused(
        "multi_objective_aggregation",
        "sum_then_normalize",
        "Strop sums the weighted parts of the reward before it normalizes them; leave it sum_then_normalize",
    ),
    mapped("mask_truncated_completions", False, "algorithm.mask_truncated"),
    mapped("entropy_coef", 0.0, "algorithm.entropy_coef"),
    refused("use_adaptive_entropy", False, "write entropy_coef, which is constant"),
    *(
        no_effect(key, default, "it is an option of use_adaptive_entropy")
        for key, default in (
            ("entropy_coef_min", 0.0),
            ("entropy_coef_max", 1.0),
            ("entropy_coef_delta", 0.005),
            ("entropy_target", 0.2),
        )
    ),
    refused("top_entropy_quantile", 1.0, "Strop trains on all tokens of a response; leave it 1.0"),
    refused("off_policy_mask_threshold", None, "Strop trains on all completions of a group; leave it null"),
    refused(
        "cast_lm_head_to_fp32",
        False,
        "log-probs are computed in float32, with weights of the dtype; leave it False",
    ),
)


def write_rollout_batch(run: Run) -> Mapping[str, Any]:
    """Write the completions of an update, and of a generation batch with several updates."""
    rollouts = getattr(run.algorithm, "rollouts_per_task", 1)
    per_step = run.trainer.tasks_per_step
    batch = (run.trainer.tasks_per_update or per_step) * rollouts
    values = device_batch(run, batch, run.trainer.microbatch)
    several = run.trainer.tasks_per_update not in (None, per_step)
    return {
        "num_generations": rollouts,
        **values,
        "generation_batch_size": per_step * rollouts if several else None,
    }


@written_by(write_rollout_batch)
def rollout_batch(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the batch sizes, which count completions: those sampled at once are a step, and are trained on in
    one or more updates."""
    batch, rollouts = update_batch(foreign), foreign["num_generations"]
    if rollouts is None or rollouts < 2:
        raise foreign.error_for(
            "num_generations",
            f"num_generations is {rollouts}, but GRPO compares the completions of one prompt with each other; "
            "write 2 or more.",
        )
    sampled, steps = foreign["generation_batch_size"], foreign["steps_per_generation"]
    if sampled is not None and steps is not None:
        raise foreign.error_for(
            "generation_batch_size",
            "generation_batch_size and steps_per_generation both set the completions sampled at once; write "
            "one of them.",
        )
    if sampled is None:
        accumulated = foreign["gradient_accumulation_steps"]
        sampled = batch // accumulated * (accumulated if steps is None else steps)
    for key, size, unit in (
        ("generation_batch_size", sampled, rollouts),
        ("per_device_train_batch_size", batch, rollouts),
        ("generation_batch_size", sampled, batch),
    ):
        if size < unit or size % unit:
            raise foreign.error_for(
                key,
                f"the completions sampled at once ({sampled}) must be a multiple of those of an update "
                f"(per_device_train_batch_size x gradient_accumulation_steps x num_processes, {batch}), and "
                f"both a multiple of num_generations ({rollouts}), because Strop updates on whole groups; "
                "change gradient_accumulation_steps.",
            )
    return {
        "algorithm.rollouts_per_task": rollouts,
        "trainer.tasks_per_step": sampled // rollouts,
        "trainer.tasks_per_update": None if sampled == batch else batch // rollouts,
        "trainer.microbatch": f"{foreign['per_device_train_batch_size']} sequences",
    }


def _options(foreign: ForeignValues) -> dict[str, Any]:
    return {
        "temperature": foreign["temperature"],
        "top_p": foreign["top_p"],
        "top_k": foreign["top_k"] or 0,
        "min_p": foreign["min_p"] or 0.0,
        "repetition_penalty": foreign["repetition_penalty"],
    }


def write_grpo_dataset(run: Run) -> Mapping[str, Any]:
    """Write the data set, and the completions per prompt in evaluations."""
    evaluated = run.data.eval[0] if run.data.eval else None
    rollouts = getattr(run.algorithm, "rollouts_per_task", None)
    count = None if evaluated is None else evaluated.rollouts_per_task
    return {**write_dataset(run), "num_generations_eval": None if count == rollouts else count}


@written_by(write_grpo_dataset)
def dataset(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the data set: the column `prompt`, and all columns for the reward functions."""
    columns = {"prompt": "prompt", "answer": None, **image_columns(foreign)}
    evaluated = {
        "name": "eval",
        **taskset(foreign, "dataset_test_split"),
        **columns,
        "rollouts_per_task": foreign["num_generations_eval"] or foreign["num_generations"],
        "sampling": _options(foreign),
    }
    train = taskset(foreign, "dataset_train_split") | columns
    return {
        **{f"data.train.{name}": value for name, value in train.items()},
        "data.eval": [evaluated] if is_evaluated(foreign) else [],
        **TEXT_PROMPTS,
        **image_places(columns),
    }


def write_prompt_length(run: Run) -> Mapping[str, Any]:
    """Write the length limit of prompts, of earlier versions of TRL."""
    limit, section = run.data.max_prompt_tokens, run.rollout.engine
    context = section.max_model_len if isinstance(section, VllmEngineConfig) else None
    implied = _PROMPT_TOKENS if context is None else context - run.data.max_response_tokens
    return {"max_prompt_length": limit if run.data.overlong == "left" or limit != implied else None}


@written_by(write_prompt_length)
def prompt_length(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the length limit of prompts: a longer one loses its beginning; without a limit it is an error."""
    limit, context = foreign["max_prompt_length"], context_length(foreign)
    implied = _PROMPT_TOKENS
    if context is not None:
        implied = context - foreign["max_completion_length"]
        if implied < 1:
            raise foreign.error_for(
                "vllm_max_model_length",
                f"vllm_max_model_length ({context}) leaves no token for the prompt next to max_completion_length "
                f"({foreign['max_completion_length']}); write a larger value.",
            )
    return {"data.max_prompt_tokens": limit or implied, "data.overlong": "left" if limit else "error"}


_rollout_batch_row = partial(mapped, read=rollout_batch)
_SAMPLING = (
    _rollout_batch_row("num_generations", 8, "algorithm.rollouts_per_task"),
    mapped(
        "num_generations_eval",
        None,
        "data.eval.0.rollouts_per_task",
        read=dataset,
        value_type=nullable(INTEGER),
        note="null means num_generations",
    ),
    _rollout_batch_row(
        "generation_batch_size",
        None,
        "trainer.tasks_per_step",
        value_type=nullable(INTEGER),
        note="counts completions",
    ),
    _rollout_batch_row(
        "steps_per_generation",
        None,
        "trainer.tasks_per_step",
        value_type=nullable(INTEGER),
        note="null means gradient_accumulation_steps",
    ),
    mapped("num_iterations", 1, "trainer.epochs_per_step"),
    mapped("max_completion_length", 512, "data.max_response_tokens"),
    mapped(
        "max_prompt_length",
        None,
        "data.max_prompt_tokens",
        read=prompt_length,
        value_type=nullable(INTEGER),
        note="of earlier versions; without it a prompt of more than 1024 tokens ends the run, or one that exceeds "
        "vllm_max_model_length with its completion",
    ),
    mapped("temperature", 1.0, "rollout.sampling.temperature"),
    mapped("top_p", 1.0, "rollout.sampling.top_p"),
    mapped("top_k", 0, "rollout.sampling.top_k", converts=null_means(0), value_type=nullable(INTEGER)),
    mapped(
        "min_p",
        None,
        "rollout.sampling.min_p",
        converts=null_means(0.0, is_written=False),
        value_type=nullable(NUMBER),
    ),
    mapped("repetition_penalty", 1.0, "rollout.sampling.repetition_penalty"),
    mapped(
        "chat_template_kwargs",
        None,
        "data.chat_template_args",
        converts=_NULL_IS_EMPTY,
        value_type=nullable(MAPPING),
    ),
    refused("generation_kwargs", None, "write temperature, top_p, top_k, min_p and repetition_penalty"),
    refused("max_tool_calling_iterations", None, "write rollout.workflow in a run file"),
    mapped("shuffle_dataset", True, "data.shuffle", converts=null_means(False), value_type=nullable(BOOLEAN)),
)


def write_reward(run: Run) -> Mapping[str, Any]:
    """Write the reward functions by their dotted paths, and the first reward model, with their weights."""
    functions, models = run.reward.functions, run.reward.models
    weights = [*(model.weight for model in models[:1]), *(part.weight for part in functions)]
    return {
        "reward_funcs": [part.function for part in functions] or None,
        "reward_model_name_or_path": models[0].path if models else None,
        "reward_weights": None if all(weight == 1 for weight in weights) else weights,
    }


@written_by(write_reward)
def reward(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the reward functions, and a reward model, which comes before them in the weights."""
    named, model = foreign["reward_funcs"] or [], foreign["reward_model_name_or_path"]
    names = [named] if isinstance(named, str) else named
    weights = foreign["reward_weights"]
    count = len(names) + (model is not None)
    if weights is None:
        weights = [1.0] * count
    if len(weights) != count:
        raise foreign.error_for(
            "reward_weights",
            f"reward_weights has {len(weights)} numbers for {count} rewards; write one for each, in the order "
            "of the reward model and reward_funcs.",
        )
    settings: dict[str, Any] = {
        "reward.functions": [
            {"function": _function(name), "weight": weight}
            for name, weight in zip(names, weights[count - len(names) :], strict=True)
        ]
    }
    if model is not None:
        settings["reward.models"] = [{"path": model, "weight": weights[0], "text_prompts": "raw"}]
    return settings


def _function(name: str) -> str:
    """The dotted path of a function; `trl grpo` also accepts the names of TRL's own, and modules of the current folder,
    which it puts on Python's path."""
    module, _, attribute = name.rpartition(".")
    file = Path(*module.split(".")).with_suffix(".py") if module and ":" not in name else None
    if file is not None and file.is_file():
        return f"{file}:{attribute}"
    if "." in name or ":" in name:
        return name
    return f"{rewards.__name__}.{name}"


_REWARD = (
    mapped(
        "reward_funcs",
        None,
        "reward.functions",
        read=reward,
        value_type=nullable(STRING_OR_LIST),
        note="dotted paths, or file.py:name",
    ),
    mapped("reward_weights", None, "reward.functions", read=reward, value_type=nullable(NUMBER_LIST)),
    mapped("reward_model_name_or_path", None, "reward.models", read=reward),
)
_SAMPLER = (
    refused("vllm_structured_outputs_regex", None, "responses are sampled without a grammar; leave it null"),
    *(
        placement(key, default, NATIVE_SAMPLER, supported=only(default), value_type=ANY)
        for key, default in (
            ("use_transformers_continuous_batching", False),
            ("use_transformers_paged", False),
        )
    ),
    no_effect("transformers_continuous_batching_config", None, "the native sampler samples"),
    *(
        placement(key, default, "it changes no result", value_type=ANY)
        for key, default in (("ds3_gather_for_generation", True), ("cache_implementation", None))
    ),
    *(
        no_effect(key, default, "samples are in the report of every run", value_type=ANY)
        for key, default in (
            ("log_completions", False),
            ("log_multimodal", True),
            ("num_completions_to_print", None),
            ("log_unique_prompts", False),
            ("log_completions_hub_repo", None),
        )
    ),
)
ROLLOUT_ROWS = (
    *MODEL_ROWS,
    *dataset_rows(dataset),
    *_REWARD,
    *_SAMPLING,
    *batch_rows(rollout_batch, "trainer.tasks_per_step", "trainer.tasks_per_update"),
    no_effect("dataloader_drop_last", False, "tasks that do not fill a step are left out, as in TRL"),
    *training_rows(1e-6, remove_unused_columns=False),
    *VLLM_ENGINE,
    *_SAMPLER,
    *INITIAL_REFERENCE_ROWS,
    dropout_row(False),
)
"""Rows that GRPOConfig and RLOOConfig share."""
GRPO_LEDGER = Ledger("trl", (*ROLLOUT_ROWS, *_LOSS, *VLLM_CORRECTION))
