"""Operators of `data.pipeline` that change, add, choose and order rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field

from strop.config.schema.base import Section
from strop.config.schema.data_juicer import DataJuicerSection
from strop.config.schema.language_model import InvalidRepliesConfig, LanguageModelConfig


class TemplateConfig(Section):
    """Columns written from templates."""

    type: Literal["template"] = "template"
    columns: dict[str, str] = Field(min_length=1)
    """Jinja text, or a `.jinja` file, by the column that it writes, with the row's columns as variables."""


class LlmMapConfig(Section):
    """Column written by a language model."""

    type: Literal["llm_map"] = "llm_map"
    model: LanguageModelConfig
    """Language model that is asked."""
    prompt: str = Field(min_length=1)
    """Jinja text or a `.jinja` file of the question, with the row's columns."""
    output: str = Field(min_length=1)
    """Column that gets the reply."""
    pattern: str | None = None
    """Regular expression with one group, whose last match in the reply is the value; null for the complete reply."""
    invalid: InvalidRepliesConfig = InvalidRepliesConfig()
    """Treatment of rows for which the model gives no usable reply."""


class SynthesizeConfig(Section):
    """Variants of each row, written by a language model; they follow the row that they come from."""

    type: Literal["synthesize"] = "synthesize"
    model: LanguageModelConfig
    """Language model that is asked."""
    prompt: str = Field(min_length=1)
    """Jinja text or a `.jinja` file of the question, with the row's columns, and `variant`, which counts from 1."""
    columns: tuple[str, ...] = Field(min_length=1)
    """Columns of a variant that the reply gives: the complete reply for one column, a JSON object with these keys for
    several. The other columns are those of the row."""
    variants: int = Field(1, gt=0)
    """Number of variants of each row."""
    keep_original: bool = True
    """Whether the row itself is kept."""
    output: str | None = None
    """Column that gets the number of the variant, 0 for the row itself; null for none."""
    invalid: InvalidRepliesConfig = InvalidRepliesConfig()
    """Treatment of variants without a usable reply: they are left out, with `keep` and `drop` alike."""


class DataJuicerTasksConfig(DataJuicerSection):
    """Operators of Data-Juicer, which its service runs on all rows: filters and deduplicators remove rows, mappers
    change them, and each statistic becomes a column."""

    type: Literal["data_juicer"] = "data_juicer"


class SampleConfig(Section):
    """Random choice of rows, without replacement; those that are chosen keep their order."""

    type: Literal["sample"] = "sample"
    count: int | None = Field(None, gt=0)
    """Number of rows; null if `fraction` decides. Fewer rows than that are all kept."""
    fraction: float | None = Field(None, gt=0, le=1)
    """Fraction of the rows; null if `count` decides."""
    weight: str | None = None
    """Column of weights, to which the probability of a row is proportional; null for equal probabilities."""
    seed: int = Field(0, ge=0)
    """Seed of the choice."""

    def faults(self) -> Iterator[str]:
        """A choice of no size, or of two."""
        if (self.count is None) == (self.fraction is None):
            yield "sample needs count or fraction, and not both"


class MixtureInputConfig(Section):
    """Further dataset of a mixture. It needs the columns that the operators after it read."""

    path: str | tuple[str, ...]
    """Dataset, as in `data.train.path`."""
    split: str | None = None
    """Split of a dataset with several splits."""
    subset: str | None = None
    """Subset of a dataset with several subsets."""
    table: str | None = None
    """Table of a database."""
    count: int | None = Field(None, gt=0)
    """Number of rows, chosen at random; null for all."""
    columns: dict[str, str] = Field(default_factory=dict)
    """New names of columns, by the names in this dataset."""


class MixtureConfig(Section):
    """Rows of further datasets."""

    type: Literal["mix"] = "mix"
    inputs: tuple[MixtureInputConfig, ...] = Field(min_length=1)
    """Further datasets."""
    shuffle: bool = True
    """Whether all rows are put into random order; otherwise the datasets follow each other."""
    output: str | None = None
    """Column that gets the number of the dataset, 0 for the one before; null for none."""
    seed: int = Field(0, ge=0)
    """Seed of the choice and of the order."""


class OrderConfig(Section):
    """Order of the rows, and a limit of their number. `data.shuffle` must be false for a run to follow it."""

    type: Literal["order"] = "order"
    by: tuple[str, ...] = ()
    """Columns to sort by, the first one first; empty for `weights`, or for a random order."""
    descending: bool = False
    """Whether the largest value comes first."""
    weights: dict[str, float] = Field(default_factory=dict)
    """Weights of columns; rows are sorted by the weighted sum, the largest first, which becomes the column
    `priority`."""
    folds: int = Field(1, gt=0)
    """Number of passes from the first to the last rows, each over every `folds`-th row of the order
    (arXiv 2506.21545); 1 keeps it as it is."""
    limit: int | None = Field(None, gt=0)
    """Maximum number of rows, from the first one of the order on; null for all."""
    seed: int = Field(0, ge=0)
    """Seed of the random order."""

    def faults(self) -> Iterator[str]:
        """Two orders."""
        if self.by and self.weights:
            yield "order has both by and weights; write one of them"
        if self.descending and not self.by:
            yield "descending applies to by; weights put the largest first"


class CustomTaskOperatorConfig(Section):
    """Operator of the user: a class whose objects are called with a list of rows and return a list of rows."""

    type: Literal["custom"] = "custom"
    operator: str
    """Dotted path or `file.py:Class`."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the class."""
