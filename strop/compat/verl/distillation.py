"""Ledger rows of verl's `distillation`: its teachers, the loss, and where the teachers run."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from strop.compat.ledger.key_mapping import (
    ANY,
    INTEGER,
    NUMBER,
    STRING,
    UNSET,
    ForeignValues,
    any_inactive,
    mapped,
    never,
    no_effect,
    not_on_page,
    nullable,
    one_of,
    only,
    placement,
    refused,
    same_as,
    unless,
    written_by,
)
from strop.compat.verl import switches
from strop.compat.verl.algorithm import KL
from strop.compat.verl.data import step_size
from strop.config.schema import Run
from strop.config.schema.algorithm import DistillationOnlyConfig, OfflineAlgorithmConfig
from strop.config.schema.distillation import (
    DistillationConfig,
    DistillationLossConfig,
    DistillationRewardConfig,
    ForwardKlConfig,
    SampledKlLossConfig,
    SampledKlRewardConfig,
)
from strop.config.schema.policy_loss import ClippedLossConfig

_AT, _LOSS, _MODELS = "distillation", "distillation.distillation_loss", "distillation.teacher_models"
_FIELD = "algorithm.distillation"
_SINGLE = "teacher_model"
"""Name of the only teacher; verl drops it where there are others."""
_TOP_K = "forward_kl_topk"
_ESTIMATORS = {name: estimator for name, estimator in KL.items() if estimator != "full"}
_DUAL_CLIP = 3.0
"""verl's upper bound of the ratio for negative advantages, which `distillation_loss` has no key for."""
_off = unless(f"{_AT}.enabled", True)
_alone_only = any_inactive(_off, unless(f"{_LOSS}.use_task_rewards", True))
_policy_gradient = any_inactive(_off, unless(f"{_LOSS}.use_policy_gradient", True))
_clip = any_inactive(_policy_gradient, unless(f"{_LOSS}.use_task_rewards", False))
_top_k = any_inactive(_off, unless(f"{_LOSS}.loss_mode", _TOP_K))
_HOW = "the teacher is a frozen model of the trainer's processes"


def write_distillation(run: Run) -> Mapping[str, Any]:
    """Write the teachers and the loss, as far as verl has them."""
    algorithm = run.algorithm
    if isinstance(algorithm, OfflineAlgorithmConfig) or algorithm.distillation is None:
        return {f"{_AT}.enabled": False}
    section, alone = algorithm.distillation, isinstance(algorithm, DistillationOnlyConfig)
    term = section.loss or section.reward
    assert term is not None
    values = {
        f"{_AT}.enabled": True,
        f"{_AT}.nnodes": 1,
        f"{_AT}.n_gpus_per_node": len(section.teachers),
        f"{_LOSS}.use_task_rewards": not alone,
        f"{_LOSS}.use_policy_gradient": isinstance(term, DistillationRewardConfig),
        f"{_LOSS}.loss_max_clamp": term.max_divergence,
        **_write_teachers(section),
        **_write_divergence(term),
    }
    if not alone:
        values[f"{_LOSS}.distillation_loss_coef"] = term.coef
    elif isinstance(algorithm.policy_loss, ClippedLossConfig):
        for side in ("low", "high"):
            values[f"{_LOSS}.clip_ratio_{side}"] = getattr(algorithm.policy_loss, f"clip_{side}")
    return values


def _write_teachers(section: DistillationConfig) -> dict[str, Any]:
    if len(section.teachers) == 1:
        return {
            f"{_MODELS}.{_SINGLE}.model_path": section.teachers[0].path,
            f"{_MODELS}.{_SINGLE}.inference.tensor_model_parallel_size": 1,
        }
    values: dict[str, Any] = {}
    sources = [(source, teacher) for teacher in section.teachers for source in teacher.sources or ()]
    for number, (source, teacher) in enumerate(sources, start=1):
        at = f"{_MODELS}.teacher{number}"
        values |= {f"{at}.key": source, f"{at}.model_path": teacher.path, f"{at}.num_replicas": 1}
    return values


def _write_divergence(term: DistillationLossConfig | DistillationRewardConfig) -> dict[str, Any]:
    match term.divergence:
        case SampledKlLossConfig() | SampledKlRewardConfig():
            return {f"{_LOSS}.loss_mode": term.divergence.estimator}
        case ForwardKlConfig(top_k=int(count), top_k_of="teacher"):
            return {
                f"{_LOSS}.loss_mode": _TOP_K,
                f"{_LOSS}.topk": count,
                f"{_LOSS}.log_prob_min_clamp": term.divergence.min_logprob,
            }
    return {}


@written_by(write_distillation, off={f"{_AT}.enabled": False})
def distillation(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the teachers, and the divergence as a loss or (`use_policy_gradient`) as a reward of each token.

    The teacher's log-probs are always at temperature 1. Without `use_task_rewards`, nothing else is learned.
    """
    mode, is_reward = foreign[f"{_LOSS}.loss_mode"], foreign[f"{_LOSS}.use_policy_gradient"]
    term: dict[str, Any] = {"divergence": _divergence(foreign, mode, is_reward)}
    if foreign[f"{_LOSS}.use_task_rewards"]:
        term["coef"] = foreign[f"{_LOSS}.distillation_loss_coef"]
    if foreign[f"{_LOSS}.loss_max_clamp"] is not None:
        term["max_divergence"] = foreign[f"{_LOSS}.loss_max_clamp"]
    settings = {
        f"{_FIELD}.teachers": _teachers(foreign),
        f"{_FIELD}.{'reward' if is_reward else 'loss'}": term,
        f"{_FIELD}.temperature": 1.0,
    }
    if switches.distillation_alone(foreign) and is_reward:
        both = foreign[f"{_LOSS}.clip_ratio"]
        bounds = {side: foreign[f"{_LOSS}.clip_ratio_{side}"] for side in ("low", "high")}
        settings |= {
            f"algorithm.policy_loss.clip_{side}": both if bound is None else bound
            for side, bound in bounds.items()
        }
        settings |= {"algorithm.policy_loss.type": "clip", "algorithm.policy_loss.dual_clip": _DUAL_CLIP}
    return settings


def _divergence(foreign: ForeignValues, mode: str, is_reward: bool) -> dict[str, Any]:
    if mode == _TOP_K and is_reward:
        raise foreign.error_for(
            f"{_LOSS}.use_policy_gradient",
            f"{_LOSS}.use_policy_gradient is True with the loss_mode {_TOP_K}, which is summed over the vocabulary "
            "and so is the same whatever token was sampled: as an advantage it teaches nothing about the token. "
            "Write use_policy_gradient=False, or loss_mode=k1.",
        )
    if mode == _TOP_K:
        count = foreign[f"{_LOSS}.topk"]
        if count is None:
            raise foreign.error_for(f"{_LOSS}.topk", f"{_LOSS}.topk is null, and {_TOP_K} needs a number.")
        bound = foreign[f"{_LOSS}.log_prob_min_clamp"]
        section = {"type": "forward_kl", "top_k": count}
        return section if bound is None else section | {"min_logprob": bound}
    estimator = _ESTIMATORS[mode]
    if estimator == "k1" and not is_reward:
        raise foreign.error_for(
            f"{_LOSS}.loss_mode",
            f"{_LOSS}.loss_mode is {mode} without use_policy_gradient: the gradient of this estimate does not "
            "depend on the teacher, and verl refuses it too. Write use_policy_gradient=True, or loss_mode=k3.",
        )
    return {"type": "sampled_kl", "estimator": estimator}


def _teachers(foreign: ForeignValues) -> list[dict[str, Any]]:
    """The teachers; entries with one model become one teacher of several data sources."""
    names = _names(foreign)
    if names == [_SINGLE]:
        return [{"path": _path(foreign, _SINGLE)}]
    if foreign.is_set(f"{_MODELS}.{_SINGLE}.model_path"):
        raise foreign.error_for(
            f"{_MODELS}.{_SINGLE}.model_path",
            f"{_MODELS}.{_SINGLE} is the name of an only teacher, which verl drops where there are others "
            f"({', '.join(name for name in names if name != _SINGLE)}); give it another name.",
        )
    sources: dict[str, list[str]] = {}
    for name in names:
        if name != _SINGLE:
            key = foreign[f"{_MODELS}.{name}.key"]
            if key is None:
                raise foreign.error_for(
                    f"{_MODELS}.{name}.key",
                    f"{_MODELS}.{name}.key is missing: the data source of the tasks that this teacher teaches.",
                )
            sources.setdefault(_path(foreign, name), []).append(key)
    return [{"path": path, "sources": keys} for path, keys in sources.items()]


def _names(foreign: ForeignValues) -> list[str]:
    return list(dict.fromkeys([*(foreign[_MODELS] or {})])) or [_SINGLE]


def _path(foreign: ForeignValues, name: str) -> str:
    path = foreign[f"{_MODELS}.{name}.model_path"]
    if not path:
        raise foreign.error_for(
            f"{_MODELS}.{name}.model_path",
            f"distillation.enabled is True, and {_MODELS}.{name}.model_path is missing: write the folder or name of "
            "the teacher.",
        )
    return str(path)


def _single_teacher(foreign: ForeignValues) -> str | None:
    return "there is one teacher" if _names(foreign) == [_SINGLE] else None


def _differs_after_first_update(foreign: ForeignValues) -> str | None:
    """verl evaluates the divergence by the current weights in every update of a step."""
    updates = step_size(foreign) != foreign["actor_rollout_ref.actor.ppo_mini_batch_size"]
    if not updates and foreign["actor_rollout_ref.actor.ppo_epochs"] == 1:
        return None
    return (
        "a step has several updates, and the divergence as a reward is that at the start of the step; in verl it "
        "is that of each update"
    )


_row = partial(mapped, read=distillation, inactive=_off)
ROWS = not_on_page(
    mapped(f"{_AT}.enabled", False, _FIELD, read=distillation, note="learning from a teacher"),
    _row(
        f"{_LOSS}.loss_mode",
        "k3",
        f"{_FIELD}.loss.divergence",
        f"{_FIELD}.reward.divergence",
        value_type=one_of(*_ESTIMATORS, _TOP_K),
    ),
    _row(
        f"{_LOSS}.topk", 32, f"{_FIELD}.loss.divergence.top_k", value_type=nullable(INTEGER), inactive=_top_k
    ),
    _row(
        f"{_LOSS}.use_task_rewards",
        True,
        "algorithm.type",
        note="False is the algorithm distillation, which learns from the teacher alone",
    ),
    _row(
        f"{_LOSS}.distillation_loss_coef",
        1.0,
        f"{_FIELD}.loss.coef",
        f"{_FIELD}.reward.coef",
        inactive=_alone_only,
    ),
    _row(
        f"{_LOSS}.loss_max_clamp",
        None,
        f"{_FIELD}.loss.max_divergence",
        f"{_FIELD}.reward.max_divergence",
        value_type=nullable(NUMBER),
    ),
    _row(
        f"{_LOSS}.log_prob_min_clamp",
        None,
        f"{_FIELD}.loss.divergence.min_logprob",
        value_type=nullable(NUMBER),
        inactive=_top_k,
    ),
    _row(
        f"{_LOSS}.use_policy_gradient",
        False,
        f"{_FIELD}.reward",
        warn=_differs_after_first_update,
        note="the divergence is a reward of each token; with use_task_rewards it is added to the advantages, "
        "and the actor's bounds of the ratio apply",
    ),
    refused(
        f"{_LOSS}.policy_loss_mode",
        "vanilla",
        "verl has no other one here either; leave it at its default",
        inactive=_policy_gradient,
    ),
    *(
        _row(
            f"{_LOSS}.clip_ratio{side}",
            0.2,
            *(f"algorithm.policy_loss.clip_{each}" for each in fields),
            value_type=nullable(NUMBER),
            inactive=_clip,
            note=note,
        )
        for side, fields, note in (
            ("", ("low", "high"), "the bound of a side whose own key is null"),
            ("_low", ("low",), ""),
            ("_high", ("high",), ""),
        )
    ),
    *(
        no_effect(f"{_LOSS}.{name}", default, why, value_type=ANY)
        for name, default, why in (
            ("use_chunked_topk", False, "divergences are always computed in chunks"),
            ("chunked_topk_chunk_size", 4096, "divergences are always computed in chunks"),
            ("global_batch_info.*", UNSET, "verl sets it at run time"),
            ("loss_settings", None, "verl sets it at run time"),
        )
    ),
    _row(
        f"{_MODELS}.*.model_path",
        UNSET,
        f"{_FIELD}.teachers",
        value_type=nullable(STRING),
        note="the name teacher_model is that of an only teacher",
    ),
    _row(
        f"{_MODELS}.*.key",
        UNSET,
        f"{_FIELD}.teachers",
        value_type=nullable(STRING),
        inactive=any_inactive(_off, _single_teacher),
        note="data source of the tasks that the teacher teaches",
    ),
    placement(f"{_MODELS}.*.num_replicas", UNSET, _HOW, supported=only(0, 1), inactive=_off),
    placement(
        f"{_MODELS}.*.inference.tensor_model_parallel_size", UNSET, _HOW, supported=only(1), inactive=_off
    ),
    placement(f"{_MODELS}.*.inference.*", UNSET, _HOW, supported=never, inactive=_off),
    refused(
        f"{_AT}.teacher_key",
        "data_source",
        "a task's teacher is chosen by its data source; write the same column as data.reward_fn_key",
        supported=same_as("data.reward_fn_key"),
        inactive=any_inactive(_off, _single_teacher),
    ),
    placement(f"{_AT}.n_gpus_per_node", 8, _HOW, supported=only(1, 8), inactive=_off),
    placement(f"{_AT}.nnodes", 0, _HOW, supported=only(0, 1), inactive=_off),
)
