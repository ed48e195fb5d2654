"""Ledger and reader of verl's `evaluation.yaml`, which scores a file of responses without a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from strop.compat.hydra import ConfigSelection, read_command_line, select
from strop.compat.ledger.key_mapping import (
    NO_RAY,
    STRING,
    STRING_OR_LIST,
    UNSET,
    ForeignValues,
    KeyOwnerHint,
    Ledger,
    mapped,
    no_effect,
    no_key_owner,
    not_on_page,
    nullable,
)
from strop.compat.ledger.reader import (
    ForeignConfig,
    apply_converters,
    check_values,
    notices_on_error,
    usage_notes,
)
from strop.compat.verl import switches
from strop.compat.verl.hydra import EVALUATION
from strop.compat.verl.reward import BY_SOURCE, reward
from strop.config.schema.base import Section
from strop.config.schema.reward import RewardConfig


class EvaluationOptions(Section):
    """Options of scoring a file of responses."""

    path: str | tuple[str, ...]
    """Parquet or JSONL files with one row per prompt."""
    prompt: str = "prompt"
    """Column of the prompt, for rewards that read it."""
    responses: str = "responses"
    """Column of the responses: a list of strings."""
    source: str = "data_source"
    """Column of the data source; results are reported per value."""
    answer: str = "reward_model.ground_truth"
    """Column of the reference answer that the reward compares with."""
    reward: RewardConfig
    """Reward that scores the responses."""


def answer_column(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the answer column; verl has the reference answer inside a mapping."""
    return {"answer": f"{foreign['data.reward_model_key']}.ground_truth"}


LEDGER = Ledger(
    "verl-eval",
    (
        mapped("data.path", "/tmp/math_Qwen2-7B-Instruct.parquet", "path", value_type=STRING_OR_LIST),
        mapped("data.prompt_key", "prompt", "prompt"),
        mapped("data.response_key", "responses", "responses"),
        mapped("data.data_source_key", "data_source", "source"),
        mapped("data.reward_model_key", "reward_model", "answer", read=answer_column),
        mapped(
            "custom_reward_function.path",
            None,
            "reward.functions.0.function",
            read=reward,
            value_type=nullable(STRING),
            note="null selects a built-in reward by each row's data source",
        ),
        mapped(
            "custom_reward_function.name",
            "compute_score",
            "reward.functions.0.function",
            read=reward,
            inactive=switches.custom_function,
        ),
        *not_on_page(
            *(no_effect(f"{section}.*", UNSET, NO_RAY) for section in ("ray_init", "ray_kwargs")),
            no_effect("hydra.*", UNSET, "nothing is written"),
        ),
    ),
)


def describe_evaluation(scoring: EvaluationOptions) -> str:
    """A description in plain English of what is scored, how, and what is printed."""
    files = scoring.path if isinstance(scoring.path, str) else ", ".join(scoring.path)
    names = [part.function for part in scoring.reward.functions]
    by = "the built-in reward for each row's source" if names == [BY_SOURCE] else " + f".join(names)
    return (
        f"Scores every response in the column {scoring.responses} of {files} with {by}, which compares it "
        f"with the row's {scoring.answer}. Prints, for each value of the column {scoring.source}, the number "
        "of prompts and responses, the mean reward, best@n, pass@k, and the reward of the majority response. "
        "Loads no model, trains nothing and writes nothing."
    )


def read_verl_eval(
    overrides: Sequence[str],
    *,
    config: Path | None = None,
    selection: ConfigSelection | None = None,
    key_owner: KeyOwnerHint = no_key_owner,
) -> tuple[EvaluationOptions, tuple[str, ...]]:
    """Read the arguments of `python -m verl.trainer.main_eval`: the options, and notices for the user.

    Raises ConfigError for a key or value that is not accepted.
    """
    selection = select(config, selection)
    tree = read_command_line(LEDGER, EVALUATION, "evaluation", overrides, selection, key_owner)
    foreign = ForeignConfig(LEDGER, tree, key_owner=key_owner)
    with notices_on_error(foreign):
        check_values(foreign)
        fields = apply_converters(foreign)
    return EvaluationOptions.model_validate(fields.values), tuple(usage_notes(foreign))
