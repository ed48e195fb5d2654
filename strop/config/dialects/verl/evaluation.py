"""verl's `evaluation.yaml`: a file of answers that are scored, without a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from strop.config.dialects.lines import draft_of
from strop.config.dialects.read import check_written, convert, notes_of
from strop.config.dialects.row import TEXT, TEXTS, mapped, or_null
from strop.config.dialects.theirs import Ledger, Theirs
from strop.config.dialects.verl import switches
from strop.config.dialects.verl.reward import reward
from strop.config.schema.base import Section
from strop.config.schema.reward import Reward


class Scoring(Section):
    """Answers in a file, and how they are scored."""

    path: str | tuple[str, ...]
    """Parquet or JSONL: one row for each prompt."""
    prompt: str = "prompt"
    """Column of the prompt, for rewards that read it."""
    responses: str = "responses"
    """Column of the answers: a list of texts."""
    source: str = "data_source"
    """Column by which the figures are kept apart."""
    answer: str = "reward_model.ground_truth"
    """Column of what the reward compares with."""
    reward: Reward
    """How an answer is scored."""


def answer_column(theirs: Theirs) -> Mapping[str, Any]:
    """verl keeps the reference inside a mapping."""
    return {"answer": f"{theirs['data.reward_model_key']}.ground_truth"}


LEDGER = Ledger(
    "verl-eval",
    (
        mapped("data.path", "/tmp/math_Qwen2-7B-Instruct.parquet", "path", kind=TEXTS),
        mapped("data.prompt_key", "prompt", "prompt"),
        mapped("data.response_key", "responses", "responses"),
        mapped("data.data_source_key", "data_source", "source"),
        mapped("data.reward_model_key", "reward_model", "answer", read=answer_column),
        mapped(
            "custom_reward_function.path",
            None,
            "reward.functions.0.function",
            read=reward,
            kind=or_null(TEXT),
            note="null chooses a built-in reward by each row's data source",
        ),
        mapped(
            "custom_reward_function.name",
            "compute_score",
            "reward.functions.0.function",
            read=reward,
            off=switches.custom_function,
        ),
    ),
)


def in_words(scoring: Scoring) -> str:
    """What is scored, how, and what comes of it, as a newcomer would say it."""
    files = scoring.path if isinstance(scoring.path, str) else ", ".join(scoring.path)
    names = [part.function for part in scoring.reward.functions]
    by = "the built-in reward of each row's source" if names == ["by_source"] else " + ".join(names)
    return (
        f"Scores every answer in the column {scoring.responses} of {files} by {by}, which compares it with "
        f"the row's {scoring.answer}. For each value of the column {scoring.source} it prints the number of "
        "prompts and of answers, the mean, the best of n, pass@k, and the reward of the answer that most "
        "come to. No model is loaded, nothing is trained, and nothing is written."
    )


def read_verl_eval(
    overrides: Sequence[str], *, config: Path | None = None
) -> tuple[Scoring, tuple[str, ...]]:
    """Read what `python -m verl.trainer.main_eval` is given, and what is to be noted of it.

    Raises ConfigError for a key or value that cannot be taken.
    """
    theirs = Theirs(LEDGER, draft_of(LEDGER, overrides, config))
    check_written(theirs)
    return Scoring.model_validate(convert(theirs).values), tuple(notes_of(theirs))
