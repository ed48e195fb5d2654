"""TRL's RewardConfig: training of a reward model from pairs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.compat.ledger.key_mapping import (
    INTEGER,
    NUMBER,
    STRING_OR_LIST,
    ForeignValues,
    KeyMapping,
    Ledger,
    mapped,
    no_effect,
    nullable,
    one_of,
    written_by,
)
from strop.compat.trl.model_and_data import dropout_row, without_peft
from strop.compat.trl.offline import (
    ACTIVATION_ROW,
    PAIR_COLUMNS,
    TOKENIZER_ROWS,
    columns_of,
    max_length,
    offline_rows,
    tasksets,
    write_offline_dataset,
)
from strop.config.model_files import read_model_file
from strop.config.schema import Run
from strop.config.schema.preference import RewardModelingConfig
from strop.errors import ConfigError

_HEAD = "score"


def write_reward_model(run: Run) -> Mapping[str, Any]:
    """Write the data set and the weight of the centering term. Raises ConfigError for another algorithm or loss."""
    section = run.algorithm
    if not isinstance(section, RewardModelingConfig):
        raise ConfigError(f"TRL's RewardConfig has no algorithm {run.algorithm.type}.")
    if section.loss != "bradley_terry":
        raise ConfigError(f"TRL's RewardTrainer has no loss {section.loss}; it trains on pairs.")
    return {**write_offline_dataset(run), "center_rewards_coefficient": section.centering_coef or None}


@written_by(write_reward_model)
def reward_model(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the data set, with the columns `prompt`, `chosen` and `rejected`, and `margin` if its file has it; the
    centering term, and the head that transformers draws for a model without one."""
    columns = PAIR_COLUMNS
    if "margin" in (columns_of(foreign) or ()):
        columns = {**columns, "margin": "margin"}
    coefficient = foreign["center_rewards_coefficient"] or 0.0
    if coefficient < 0:
        raise foreign.error_for(
            "center_rewards_coefficient",
            f"center_rewards_coefficient is {coefficient}; write a number of at least 0, such as 0.01.",
        )
    return {
        "algorithm.type": "reward_model",
        "algorithm.centering_coef": coefficient,
        "algorithm.head": _HEAD if _is_classifier(foreign) else "normal",
        "algorithm.append_eos": True,
        **tasksets(foreign, columns, takes_images=False),
    }


def _is_classifier(foreign: ForeignValues) -> bool:
    """Whether the model's folder is a classifier's, whose head is kept."""
    path = foreign["model_name_or_path"]
    names = read_model_file(path, "config.json").get("architectures") if isinstance(path, str) else None
    return isinstance(names, list) and any(str(name).endswith("ForSequenceClassification") for name in names)


def _unknown_margin(foreign: ForeignValues) -> str | None:
    """A notice on the margins of a data set that is not on this machine."""
    if foreign["dataset_name"] is None or columns_of(foreign) is not None:
        return None
    return "a column margin is not read before the data set is here: write data.train.margin in a run file"


@written_by(lambda run: {"max_length": run.data.max_prompt_tokens + run.data.max_response_tokens})
def length_filter(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the length limit, beyond which TRL leaves a pair out."""
    return {**max_length(foreign), "data.overlong": "filter"}


def write_adapted_head(run: Run) -> Mapping[str, Any]:
    """Write the kind of the adapter's model, by which PEFT trains the head too."""
    return {"lora_task_type": "SEQ_CLS"} if run.model.lora is not None else {}


@written_by(write_adapted_head)
def adapted_head(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read whether the head is trained with the adapter. Raises ConfigError where PEFT would leave it as drawn."""
    saved = foreign["lora_modules_to_save"] or []
    saved = [saved] if isinstance(saved, str) else saved
    if not foreign["use_peft"]:
        return {}
    if others := [name for name in saved if name != _HEAD]:
        raise foreign.error_for(
            "lora_modules_to_save",
            f"lora_modules_to_save has {others[0]}; Strop trains the adapter and the head score: write [score], or "
            "leave it out.",
        )
    if foreign["lora_task_type"] != "SEQ_CLS" and not saved:
        raise foreign.error_for(
            "lora_task_type",
            "lora_task_type is CAUSAL_LM, with which PEFT trains no head of the reward model; write SEQ_CLS, or "
            "lora_modules_to_save: [score].",
        )
    return {}


_REPLACED = ("router_aux_loss_coef", "lora_task_type", "lora_modules_to_save", "max_length")
"""Rows of other configurations that RewardConfig does not have, or reads otherwise."""


def _rows() -> tuple[KeyMapping, ...]:
    shared = offline_rows(reward_model, 1e-4, _unknown_margin)
    return tuple(row for row in shared if row.key not in _REPLACED)


REWARD_LEDGER = Ledger(
    "trl-reward",
    (
        *_rows(),
        mapped(
            "max_length",
            1024,
            "data.max_prompt_tokens",
            "data.max_response_tokens",
            "data.overlong",
            read=length_filter,
            value_type=nullable(INTEGER),
            note="longer pairs are left out",
        ),
        mapped(
            "center_rewards_coefficient",
            None,
            "algorithm.centering_coef",
            read=reward_model,
            value_type=nullable(NUMBER),
        ),
        mapped(
            "lora_task_type",
            "CAUSAL_LM",
            "model.lora",
            read=adapted_head,
            value_type=one_of("CAUSAL_LM", "SEQ_CLS"),
            inactive=without_peft,
            note="SEQ_CLS, or lora_modules_to_save: [score]",
        ),
        mapped(
            "lora_modules_to_save",
            None,
            "model.lora",
            read=adapted_head,
            value_type=nullable(STRING_OR_LIST),
            inactive=without_peft,
        ),
        *TOKENIZER_ROWS,
        no_effect("pad_token", None, "sequences are packed without padding"),
        ACTIVATION_ROW,
        dropout_row(True),
    ),
)
