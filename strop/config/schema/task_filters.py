"""Operators of `data.pipeline` that remove rows: by length, language, duplication, a column's value, or scores."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from strop.config.schema.base import Section
from strop.config.schema.language_model import InvalidRepliesConfig, LanguageModelConfig


class BoundsConfig(Section):
    """Bounds of a value, both inclusive."""

    min: float | None = None
    """Minimum value of the rows that are kept; null for no minimum."""
    max: float | None = None
    """Maximum value of the rows that are kept; null for no maximum."""

    def faults(self) -> Iterator[str]:
        """Bounds that no value satisfies."""
        if self.min is not None and self.max is not None and self.min > self.max:
            yield f"min ({self.min:g}) is more than max ({self.max:g}), so no row would be kept"


class LengthFilterConfig(BoundsConfig):
    """Removal of rows with a short or long text."""

    type: Literal["length"] = "length"
    column: str
    """Column of the text, or of a list of messages, whose contents are joined."""
    unit: Literal["characters", "words", "tokens"] = "words"
    """Unit of `min` and `max`; `tokens` are those of the run's tokenizer, without a chat template."""
    output: str | None = None
    """Column that gets the length; null for none."""


class LanguageFilterConfig(Section):
    """Removal of rows in other languages, identified by py3langid. Needs the extra `pipelines`."""

    type: Literal["language"] = "language"
    column: str
    """Column of the text, or of a list of messages."""
    languages: tuple[str, ...] = Field(("en",), min_length=1)
    """ISO 639-1 codes of the languages that are kept."""
    min_score: float = Field(0.0, ge=0, le=1)
    """Minimum probability of the identified language."""
    output: str | None = None
    """Column that gets the code of the language; null for none."""


class DeduplicateConfig(Section):
    """Removal of rows whose text another row before has already."""

    type: Literal["deduplicate"] = "deduplicate"
    columns: tuple[str, ...] = Field(min_length=1)
    """Columns that are compared together: texts, lists of messages, or other values."""
    method: Literal["exact", "minhash"] = "exact"
    """Comparison: `exact` for equal texts, `minhash` for similar ones by MinHash and locality-sensitive hashing
    (datasketch; needs the extra `pipelines`)."""
    normalize: bool = True
    """Whether letter case and white space are ignored."""
    similarity: float = Field(0.7, gt=0, lt=1)
    """Jaccard similarity of the sets of n-grams from which `minhash` takes two rows for duplicates."""
    ngram_words: int = Field(5, gt=0)
    """Number of words in an n-gram of `minhash`."""
    permutations: int = Field(128, gt=0)
    """Number of hash functions of `minhash`; more are more exact and slower."""

    def faults(self) -> Iterator[str]:
        """Settings of the other method."""
        written = {"similarity", "ngram_words", "permutations"} & self.model_fields_set
        if self.method == "exact" and written:
            yield f"{sorted(written)[0]} applies to method minhash; write method: minhash, or remove it"


class RangeFilterConfig(BoundsConfig):
    """Removal of rows by the value of a column, such as a score of an operator before."""

    type: Literal["range"] = "range"
    column: str
    """Column of numbers or, with `values`, of anything."""
    values: tuple[str | int | float | bool, ...] | None = None
    """Values of the rows that are kept; null if `min` or `max` decide."""
    missing: Literal["keep", "drop", "error"] = "error"
    """Rows without a value: `keep`, `drop`, or `error`, which stops at the first one."""

    def faults(self) -> Iterator[str]:
        """A filter without a condition, or with two."""
        yield from super().faults()
        bounded = self.min is not None or self.max is not None
        if bounded == (self.values is not None):
            yield "range needs one condition; write min, max or both, or values"


class LlmScoreConfig(Section):
    """Score of each row by a language model, and removal of rows with a low or high one."""

    type: Literal["llm_score"] = "llm_score"
    criterion: Literal["quality", "difficulty"] = "quality"
    """Criterion of Strop's own question to the model; without effect on a `prompt` of your own."""
    model: LanguageModelConfig
    """Language model that is asked."""
    input_columns: tuple[str, ...] = Field(min_length=1)
    """Columns that the model sees."""
    field_names: tuple[str, ...] = ()
    """Names of these columns in the question; empty for the names of the columns."""
    prompt: str | None = None
    """Jinja text or a `.jinja` file of the question, with `fields` (pairs of name and text) and the row's columns;
    null for Strop's own."""
    pattern: str = r'"?[Ss]core"?\s*[:=][\s*"]*(-?\d+(?:\.\d+)?)'
    """Regular expression with one group; the last match in the reply is the score."""
    scale: tuple[float, float] = (1.0, 5.0)
    """Scores of the model that become 0 and 1."""
    min_score: float = Field(0.5, ge=0, le=1)
    """Minimum score, from 0 to 1, of the rows that are kept."""
    max_score: float = Field(1.0, ge=0, le=1)
    """Maximum score, from 0 to 1, of the rows that are kept."""
    output: str | None = None
    """Column that gets the score; null for `llm_quality_score` or `llm_difficulty_score`."""
    invalid: InvalidRepliesConfig = InvalidRepliesConfig()
    """Treatment of rows for which the model gives no score."""

    @property
    def score_column(self) -> str:
        """The column that gets the score."""
        return self.output or f"llm_{self.criterion}_score"

    def faults(self) -> Iterator[str]:
        """Bounds and names that contradict each other."""
        if self.min_score > self.max_score:
            yield f"min_score ({self.min_score:g}) is more than max_score ({self.max_score:g})"
        if self.scale[0] == self.scale[1]:
            yield f"scale has {self.scale[0]:g} twice; write two different scores"
        if self.field_names and len(self.field_names) != len(self.input_columns):
            yield (
                f"field_names has {len(self.field_names)} names for {len(self.input_columns)} input_columns; write one "
                "for each, or none"
            )


class PassRateConfig(Section):
    """Fraction of correct answers of a model to each task, sampled by the rollout engine with the run's workflow and
    reward, and removal of tasks that are too easy, too hard, or always give the same reward."""

    type: Literal["pass_rate"] = "pass_rate"
    model: str | None = None
    """Folder or Hub name of the model; null for the run's own initial model."""
    rollouts_per_task: int = Field(8, gt=0)
    """Number of answers sampled per task."""
    temperature: float = Field(1.0, ge=0)
    """Sampling temperature."""
    pass_reward: float = 1.0
    """Minimum reward of a correct answer."""
    min: float = Field(0.0, ge=0, le=1)
    """Minimum pass rate of the tasks that are kept."""
    max: float = Field(1.0, ge=0, le=1)
    """Maximum pass rate of the tasks that are kept."""
    min_reward_std: float = Field(0.0, ge=0)
    """Minimum population standard deviation of a task's rewards; 0 keeps tasks whose answers all have the same."""
    max_failed_fraction: float = Field(0.1, ge=0, le=1)
    """Maximum fraction of failed rollouts; above it the pipeline stops. A task without a scored answer is kept, without
    values, and counted."""

    def faults(self) -> Iterator[str]:
        """Bounds that no task satisfies."""
        if self.min > self.max:
            yield f"min ({self.min:g}) is more than max ({self.max:g}), so no task would be kept"
        if self.min_reward_std > 0 and self.rollouts_per_task == 1:
            yield "min_reward_std needs two rollouts_per_task or more: one reward has no deviation"
