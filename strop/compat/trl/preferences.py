"""TRL's DPOConfig and KTOConfig, and the experimental CPOConfig and ORPOConfig."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, get_args

from pydantic import ValidationError

from strop.compat.ledger.key_mapping import (
    BOOLEAN,
    INTEGER,
    NUMBER,
    NUMBER_LIST,
    STRING_OR_LIST,
    ForeignValues,
    KeyMapping,
    Ledger,
    ValueType,
    mapped,
    no_effect,
    nullable,
    one_of,
    refused,
    unless,
    written_by,
)
from strop.compat.trl.model_and_data import INITIAL_REFERENCE_ROWS, dropout_row
from strop.compat.trl.offline import (
    ACTIVATION_ROW,
    LENGTH_ROWS,
    PAIR_COLUMNS,
    columns_of,
    is_streamed,
    offline_rows,
    tasksets,
    write_offline_dataset,
    write_streaming,
)
from strop.config.schema import Run
from strop.config.schema.preference import CpoConfig, DpoConfig, DpoLossName, KtoConfig, OrpoConfig
from strop.errors import ConfigError

_DROPOUT = dropout_row(True)
_DIVERGENCES = {
    "reverse_kl": "reverse_kl",
    "forward_kl": "forward_kl",
    "js_divergence": "jsd",
    "alpha_divergence": "alpha",
}
_ALPHA, _TAU = "ref_model_mixup_alpha", "ref_model_sync_steps"
_UNSMOOTHED = ("sigmoid", "sigmoid_norm")
"""Losses that TRL computes without label_smoothing, and Strop with it."""
_WEIGHTS = ValueType(
    "a number or a list of numbers", lambda value: NUMBER.accepts(value) or NUMBER_LIST.accepts(value)
)


def write_dpo(run: Run) -> Mapping[str, Any]:
    """Write the losses with their weights and options. Raises ConfigError where TRL smooths no labels."""
    section = run.algorithm
    assert isinstance(section, DpoConfig)  # as `write_pairs` requires
    smoothed = set(section.losses) & set(_UNSMOOTHED)
    if section.label_smoothing and smoothed:
        raise ConfigError(f"TRL's loss {smoothed.pop()} ignores label_smoothing; write label_smoothing 0.")
    names = {ours: theirs for theirs, ours in _DIVERGENCES.items()}
    weights = list(section.losses.values())
    sync = section.reference_sync
    changes = {} if sync is None else {_ALPHA: sync.policy_weight, _TAU: sync.every_updates}
    return {
        "sync_ref_model": sync is not None,
        **changes,
        "beta": section.beta,
        "label_smoothing": section.label_smoothing,
        "loss_type": list(section.losses),
        "loss_weights": None if set(weights) == {1.0} else weights,
        "f_divergence_type": names[section.divergence],
        "f_alpha_divergence_coef": section.divergence_alpha,
        "discopop_tau": section.discopop_temperature,
        "ld_alpha": None if section.excess_token_weight == 1 else section.excess_token_weight,
    }


@written_by(write_dpo)
def dpo(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the losses. Raises ConfigError for options that TRL refuses, or that it reads otherwise than Strop."""
    names: list[str] = (
        [foreign["loss_type"]] if isinstance(foreign["loss_type"], str) else foreign["loss_type"]
    )
    if unknown := [name for name in names if name not in get_args(DpoLossName)]:
        raise foreign.error_for(
            "loss_type",
            f"loss_type {', '.join(unknown)} is a loss that Strop does not have; write some of "
            f"{', '.join(get_args(DpoLossName))}.",
        )
    weights = foreign["loss_weights"] or [1.0] * len(names)
    weights = weights if isinstance(weights, list) else [weights]  # of a command line with one value
    if len(weights) != len(names):
        raise foreign.error_for(
            "loss_weights",
            f"there are {len(weights)} loss_weights for {len(names)} losses; write one for each.",
        )
    if foreign["rpo_alpha"]:
        if "sft" in names:
            raise foreign.error_for(
                "rpo_alpha", "rpo_alpha and the loss sft are one term; leave out rpo_alpha."
            )
        names, weights = [*names, "sft"], [*weights, foreign["rpo_alpha"]]
    unsmoothed = [name for name in names if name in _UNSMOOTHED]
    if foreign["label_smoothing"] and unsmoothed:
        raise foreign.error_for(
            "label_smoothing",
            f"label_smoothing is {foreign['label_smoothing']}, which TRL's loss {unsmoothed[0]} ignores (the losses "
            "robust and exo_pair have it) and that of earlier versions does not; write 0, or the run file's "
            "algorithm.label_smoothing, which smooths it.",
        )
    divergence = _DIVERGENCES[foreign["f_divergence_type"]]
    values = {
        "beta": foreign["beta"],
        "loss": names[0] if names[1:] == [] and weights == [1.0] else dict(zip(names, weights, strict=True)),
        "label_smoothing": foreign["label_smoothing"],
        "divergence": divergence,
        "divergence_alpha": foreign["f_alpha_divergence_coef"] if divergence == "alpha" else 0.5,
        "discopop_temperature": foreign["discopop_tau"] if "discopop" in names else 0.05,
        "excess_token_weight": 1.0 if foreign["ld_alpha"] is None else foreign["ld_alpha"],
    }
    if foreign["sync_ref_model"]:
        if foreign["precompute_ref_log_probs"]:
            raise foreign.error_for(
                "precompute_ref_log_probs",
                "sync_ref_model and precompute_ref_log_probs are both True, which TRL refuses; write one of them.",
            )
        values["reference_sync"] = {"every_updates": foreign[_TAU], "policy_weight": foreign[_ALPHA]}
    try:
        DpoConfig.model_validate(values)
    except ValidationError as error:
        faults = error.errors()
        said = "; ".join(fault["msg"].removeprefix("Value error, ") for fault in faults)
        if any("reference_sync" in fault["loc"] for fault in faults):
            raise foreign.error_for("sync_ref_model", f"{_TAU} and {_ALPHA}: {said}.") from error
        raise foreign.error_for("loss_type", f"{said}.") from error
    return {f"algorithm.{field}": value for field, value in values.items()}


def _discopop_is_absent(foreign: ForeignValues) -> str | None:
    return None if "discopop" in foreign["loss_type"] else f"loss_type is {foreign['loss_type']}"


_row = partial(mapped, read=dpo)
_DPO_LOSS = (
    _row("beta", 0.1, "algorithm.beta"),
    _row(
        "rpo_alpha",
        None,
        "algorithm.loss",
        value_type=nullable(NUMBER),
        note="of earlier versions: the weight of the loss sft in addition to the others",
    ),
    _row("loss_type", ["sigmoid"], "algorithm.loss", value_type=STRING_OR_LIST),
    _row("loss_weights", None, "algorithm.loss", value_type=nullable(_WEIGHTS)),
    _row("label_smoothing", 0.0, "algorithm.label_smoothing"),
    _row("f_divergence_type", "reverse_kl", "algorithm.divergence", value_type=one_of(*_DIVERGENCES)),
    _row(
        "f_alpha_divergence_coef",
        0.5,
        "algorithm.divergence_alpha",
        inactive=unless("f_divergence_type", "alpha_divergence"),
    ),
    _row("discopop_tau", 0.05, "algorithm.discopop_temperature", inactive=_discopop_is_absent),
    _row("ld_alpha", None, "algorithm.excess_token_weight", value_type=nullable(NUMBER)),
    _row("sync_ref_model", False, "algorithm.reference_sync"),
    _row(_ALPHA, 0.6, "algorithm.reference_sync.policy_weight", inactive=unless("sync_ref_model", True)),
    _row(_TAU, 512, "algorithm.reference_sync.every_updates", inactive=unless("sync_ref_model", True)),
    refused(
        "reference_free",
        False,
        "of earlier versions; losses without a reference are those of CPOConfig; leave it False",
    ),
    refused(
        "use_weighting", False, "Strop weighs no pairs by the policy's probabilities (WPO); leave it False"
    ),
)


def write_pairs(run: Run) -> Mapping[str, Any]:
    """Write the data set. Raises ConfigError for an algorithm without a reference."""
    if not isinstance(run.algorithm, DpoConfig):
        raise ConfigError(f"TRL's DPOConfig has no algorithm {run.algorithm.type}.")
    return write_offline_dataset(run)


@written_by(write_pairs)
def pairs(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the data set, with the columns `prompt`, `chosen` and `rejected`."""
    return {"algorithm.type": "dpo", **tasksets(foreign, PAIR_COLUMNS)}


_PRECOMPUTED = (
    no_effect(
        "precompute_ref_log_probs",
        False,
        "the reference's log-probs of the rows are computed before the first update, and cached, in any case",
    ),
    no_effect("precompute_ref_batch_size", None, "it is an option of precompute_ref_log_probs"),
)
"""Options on the log-probs of the reference."""
DPO_LEDGER = Ledger(
    "trl-dpo", (*offline_rows(pairs, 1e-6), *LENGTH_ROWS, *_DPO_LOSS, *_PRECOMPUTED, _DROPOUT)
)
_LABELED: dict[str, Any] = {"prompt": "prompt", "response": "completion", "label": "label", "answer": None}


def _section(
    foreign: ForeignValues,
    kind: type[KtoConfig] | type[CpoConfig] | type[OrpoConfig],
    values: Mapping[str, Any],
    key: str,
) -> dict[str, Any]:
    """The fields of an `algorithm` section. Raises ConfigError, at `key`, for values that it refuses."""
    try:
        kind.model_validate(values)
    except ValidationError as error:
        said = "; ".join(
            ": ".join([*map(str, fault["loc"]), fault["msg"].removeprefix("Value error, ")])
            for fault in error.errors()
        )
        raise foreign.error_for(key, f"{said}.") from error
    return {f"algorithm.{field}": value for field, value in values.items()}


def write_labels(run: Run) -> Mapping[str, Any]:
    """Write the data set. Raises ConfigError for another algorithm."""
    if not isinstance(run.algorithm, KtoConfig):
        raise ConfigError(f"TRL's KTOConfig has no algorithm {run.algorithm.type}.")
    return write_offline_dataset(run)


@written_by(write_labels)
def labels(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the data set: the columns `prompt`, `completion` and `label`, or `chosen` and `rejected` of pairs, each of
    which becomes two rows."""
    has_pairs = {"chosen", "rejected"} <= (columns_of(foreign) or frozenset())
    columns = PAIR_COLUMNS if has_pairs else {**_LABELED, "equal_pairs": "filter"}
    return {"algorithm.type": "kto", **tasksets(foreign, columns)}


def _unknown_labels(foreign: ForeignValues) -> str | None:
    """A notice on the columns of a data set that is not on this machine."""
    if foreign["dataset_name"] is None or columns_of(foreign) is not None:
        return None
    return (
        "the columns prompt, completion and label are read; of a data set with chosen and rejected, which TRL would "
        "turn into two rows each, write data.train.chosen and data.train.rejected in a run file (strop convert)"
    )


_KTO = {
    "beta": "beta",
    "loss_type": "loss",
    "desirable_weight": "desirable_weight",
    "undesirable_weight": "undesirable_weight",
}
"""Fields of `algorithm` of type kto, by TRL's keys."""


@written_by(lambda run: {key: getattr(run.algorithm, field) for key, field in _KTO.items()})
def kto(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the loss and its weights. Raises ConfigError for values that Strop refuses."""
    values = {field: foreign[key] for key, field in _KTO.items()}
    return _section(foreign, KtoConfig, values, "desirable_weight")


def write_row_order(run: Run) -> Mapping[str, Any]:
    """Write the order of the rows, which TRL has as that of the data set or, without an estimate, at random."""
    section = run.algorithm
    assert isinstance(section, KtoConfig)
    if run.data.shuffle and section.estimates_kl:
        raise ConfigError(
            "data.shuffle is true, and TRL's loss kto needs the rows in the order of the data set; write data.shuffle: "
            "false."
        )
    return {"train_sampling_strategy": "random" if run.data.shuffle else "sequential", **write_streaming(run)}


@written_by(write_row_order)
def row_order(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the order of the rows. Raises ConfigError where TRL does."""
    strategy = foreign["train_sampling_strategy"]
    if strategy == "random" and foreign["loss_type"] == "kto":
        raise foreign.error_for(
            "train_sampling_strategy",
            "train_sampling_strategy is random, which TRL refuses for the loss kto; leave it out, or shuffle the data "
            "set before.",
        )
    return {"data.shuffle": not is_streamed(foreign) and strategy == "random"}


def _estimate_over_the_update(foreign: ForeignValues) -> str | None:
    """A notice where TRL's estimate of the divergence is over less than an update."""
    if (
        foreign["loss_type"] != "kto"
        or foreign["gradient_accumulation_steps"] * foreign["num_processes"] == 1
    ):
        return None
    return (
        "the KL divergence is estimated over the whole update; TRL estimates it in each accumulated batch, with "
        "completions rotated within each process's part of it"
    )


_STREAMED = mapped("dataset_streaming", False, "data.shuffle", read=row_order)
_ORDER = mapped(
    "train_sampling_strategy",
    "sequential",
    "data.shuffle",
    read=row_order,
    value_type=one_of("sequential", "random"),
    note="random only for apo_zero_unpaired",
)
KTO_LEDGER = Ledger(
    "trl-kto",
    (
        *offline_rows(labels, 1e-6, _unknown_labels, streaming=_STREAMED, order=_ORDER),
        mapped("beta", 0.1, "algorithm.beta", read=kto),
        mapped(
            "loss_type",
            "kto",
            "algorithm.loss",
            read=kto,
            value_type=one_of("kto", "apo_zero_unpaired"),
            warn=_estimate_over_the_update,
        ),
        mapped("desirable_weight", 1.0, "algorithm.desirable_weight", read=kto),
        mapped("undesirable_weight", 1.0, "algorithm.undesirable_weight", read=kto),
        *INITIAL_REFERENCE_ROWS,
        *_PRECOMPUTED,
        ACTIVATION_ROW,
        _DROPOUT,
    ),
)
_WITHOUT_REFERENCE_ROWS = (
    no_effect(
        "max_completion_length",
        None,
        "TRL reads it for encoder-decoder models only",
        value_type=nullable(INTEGER),
    ),
    refused(
        "generate_during_eval", False, "write an eval taskset with a reward in a run file; leave it False"
    ),
    refused(
        "is_encoder_decoder",
        None,
        "Strop trains causal language models; leave it out",
        value_type=nullable(BOOLEAN),
        supported=lambda _, value: not value,
    ),
    _DROPOUT,
)
"""Fields that CPOConfig and ORPOConfig have and the promoted configurations have not."""


def _experimental_rows(rows: tuple[KeyMapping, ...]) -> tuple[KeyMapping, ...]:
    """The rows without the fields that CPOConfig and ORPOConfig, which are experimental, do not have."""
    return tuple(row for row in rows if row.key not in ("router_aux_loss_coef", "pad_to_multiple_of"))


def write_cpo(run: Run) -> Mapping[str, Any]:
    """Write the data set and the loss. Raises ConfigError for another algorithm."""
    section = run.algorithm
    if not isinstance(section, CpoConfig):
        raise ConfigError(f"TRL's CPOConfig has no algorithm {run.algorithm.type}.")
    return {
        **write_offline_dataset(run),
        "beta": section.beta,
        "loss_type": section.loss,
        "label_smoothing": section.label_smoothing,
        "cpo_alpha": section.sft_weight,
        "simpo_gamma": section.margin,
        "alpha": section.reward_shape,
    }


@written_by(write_cpo)
def cpo(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the data set and the loss; `alphapo` is simpo without the cross entropy. Raises ConfigError for values that
    Strop refuses."""
    kind, smoothing = foreign["loss_type"], foreign["label_smoothing"]
    if smoothing and kind in ("hinge", "ipo"):
        raise foreign.error_for(
            "label_smoothing",
            f"label_smoothing is {smoothing}, which TRL ignores with a warning for the loss {kind}; write 0.",
        )
    loss = "simpo" if kind == "alphapo" else kind
    values = {
        "beta": foreign["beta"],
        "loss": loss,
        "label_smoothing": smoothing,
        "sft_weight": 0.0 if kind == "alphapo" else foreign["cpo_alpha"],
        "margin": foreign["simpo_gamma"] if loss == "simpo" else 0.5,
        "reward_shape": foreign["alpha"],
    }
    return {
        "algorithm.type": "cpo",
        **tasksets(foreign, PAIR_COLUMNS, reads_optional=False),
        **_section(foreign, CpoConfig, values, "loss_type"),
    }


_cpo_row = partial(mapped, read=cpo)
CPO_LEDGER = Ledger(
    "trl-cpo",
    (
        *_experimental_rows(offline_rows(cpo, 1e-6)),
        _cpo_row("beta", 0.1, "algorithm.beta"),
        _cpo_row(
            "loss_type",
            "sigmoid",
            "algorithm.loss",
            "algorithm.sft_weight",
            value_type=one_of("sigmoid", "hinge", "ipo", "simpo", "alphapo"),
            note="alphapo is simpo with cpo_alpha 0",
        ),
        _cpo_row("label_smoothing", 0.0, "algorithm.label_smoothing"),
        _cpo_row(
            "cpo_alpha",
            1.0,
            "algorithm.sft_weight",
            inactive=lambda foreign: "loss_type is alphapo" if foreign["loss_type"] == "alphapo" else None,
        ),
        _cpo_row(
            "simpo_gamma",
            0.5,
            "algorithm.margin",
            inactive=lambda foreign: (
                None
                if foreign["loss_type"] in ("simpo", "alphapo")
                else f"loss_type is {foreign['loss_type']}, and it is the margin of simpo"
            ),
        ),
        _cpo_row("alpha", 0.0, "algorithm.reward_shape"),
        *_WITHOUT_REFERENCE_ROWS,
    ),
)


def write_orpo(run: Run) -> Mapping[str, Any]:
    """Write the data set and the weight, and a key by which the file is known as ORPO's. Raises ConfigError for another
    algorithm."""
    if not isinstance(run.algorithm, OrpoConfig):
        raise ConfigError(f"TRL's ORPOConfig has no algorithm {run.algorithm.type}.")
    return {**write_offline_dataset(run), "beta": run.algorithm.beta, "padding_value": None}


@written_by(write_orpo)
def orpo(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the data set and the weight. Raises ConfigError for values that Strop refuses."""
    section = _section(foreign, OrpoConfig, {"beta": foreign["beta"]}, "beta")
    return {"algorithm.type": "orpo", **tasksets(foreign, PAIR_COLUMNS, reads_optional=False), **section}


def _prompts_untrained(foreign: ForeignValues) -> str:
    """A notice on ORPO's cross entropy, which is the paper's."""
    return "the cross entropy is over the tokens of the chosen responses; TRL's is over those of their prompts too"


ORPO_LEDGER = Ledger(
    "trl-orpo",
    (
        *_experimental_rows(offline_rows(orpo, 1e-6)),
        mapped("beta", 0.1, "algorithm.beta", read=orpo, warn=_prompts_untrained),
        no_effect("padding_value", None, "sequences are packed without padding"),
        *_WITHOUT_REFERENCE_ROWS,
    ),
)
