"""Converters of GRPOConfig: loss, advantages, KL term, sampling, data set and rewards."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from strop.compat.ledger.key_mapping import ForeignValues, written_by
from strop.compat.trl import rewards, vllm
from strop.compat.trl.images import image_columns, image_places
from strop.compat.trl.run_settings import TEXT_PROMPTS, is_evaluated, taskset, write_dataset
from strop.config.schema import Run
from strop.config.schema.group_baselines import GrpoConfig
from strop.config.schema.inference_engine import VllmEngineConfig
from strop.config.schema.policy_gradient import PolicyGradientConfig
from strop.config.schema.policy_loss import (
    CispoLossConfig,
    ClippedLossConfig,
    GspoLossConfig,
    SapoLossConfig,
)
from strop.errors import ConfigError

_AGGREGATIONS = {
    "dapo": "token-mean",
    "bnpo": "token-mean",
    "cispo": "token-mean",
    "grpo": "seq-mean-token-mean",
    "sapo": "seq-mean-token-mean",
    "dr_grpo": "seq-mean-token-sum-norm",
}
_CLIPPED = {
    "token-mean": "dapo",
    "seq-mean-token-mean": "grpo",
    "seq-mean-token-sum-norm": "dr_grpo",
}
_PROMPT_TOKENS = 1024
_STD_EPSILON = 1e-4


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
        return settings | {
            "algorithm.policy_loss.type": "cispo",
            "algorithm.policy_loss.clip_high": high - 1,
        }
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


def write_sampling(run: Run) -> Mapping[str, Any]:
    """Write the sampling options."""
    options = run.rollout.sampling
    return {
        "temperature": options.temperature,
        "top_p": options.top_p,
        "top_k": options.top_k,
        "min_p": options.min_p or None,
        "repetition_penalty": options.repetition_penalty,
    }


def _options(foreign: ForeignValues) -> dict[str, Any]:
    return {
        "temperature": foreign["temperature"],
        "top_p": foreign["top_p"],
        "top_k": foreign["top_k"] or 0,
        "min_p": foreign["min_p"] or 0.0,
        "repetition_penalty": foreign["repetition_penalty"],
    }


@written_by(write_sampling)
def sampling(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the sampling options of training; evaluation uses the same (see dataset)."""
    return {f"rollout.sampling.{name}": value for name, value in _options(foreign).items()}


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
    limit, context = foreign["max_prompt_length"], vllm.context_length(foreign)
    implied = _PROMPT_TOKENS
    if context is not None:
        implied = context - foreign["max_completion_length"]
        if implied < 1:
            raise foreign.error_for(
                "vllm_max_model_length",
                f"vllm_max_model_length ({context}) leaves no token for the prompt next to max_completion_length "
                f"({foreign['max_completion_length']}); write a larger value.",
            )
    return {
        "data.max_prompt_tokens": limit or implied,
        "data.overlong": "left" if limit else "error",
    }


def write_template(run: Run) -> Mapping[str, Any]:
    """Write the variables of the chat template."""
    return {"chat_template_kwargs": dict(run.data.chat_template_args) or None}


@written_by(write_template)
def template(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the variables of the chat template."""
    return {"data.chat_template_args": foreign["chat_template_kwargs"] or {}}


def write_shuffling(run: Run) -> Mapping[str, Any]:
    """Write whether the tasks are shuffled."""
    return {"shuffle_dataset": run.data.shuffle}


@written_by(write_shuffling)
def shuffling(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read whether the tasks are shuffled; null means that they are not."""
    return {"data.shuffle": bool(foreign["shuffle_dataset"])}


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
