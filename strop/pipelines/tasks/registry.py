"""Registry of task operators: how each section of `data.pipeline` becomes an operator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from strop.config.schema.base import Section
from strop.config.schema.task_pipeline import (
    CustomTaskOperatorConfig,
    DataJuicerTasksConfig,
    DeduplicateConfig,
    LanguageFilterConfig,
    LengthFilterConfig,
    LlmMapConfig,
    LlmScoreConfig,
    MixtureConfig,
    OrderConfig,
    PassRateConfig,
    RangeFilterConfig,
    SampleConfig,
    SynthesizeConfig,
    TaskOperatorConfig,
    TemplateConfig,
)
from strop.config.user_code import ImportPath, construct
from strop.errors import ConfigError, DataError, StropError
from strop.pipelines.tasks.filters import Deduplicate, LanguageFilter, LengthFilter, RangeFilter
from strop.pipelines.tasks.llm_operators import LanguageModel, LlmMap, LlmScore, Model, PassRate, Synthesize
from strop.pipelines.tasks.operator import (
    ROW_ID,
    DatasetOperator,
    PipelineServices,
    Processed,
    Removal,
    Say,
    TaskOperator,
    to_table,
)
from strop.pipelines.tasks.order import Mix, Order, Sample
from strop.pipelines.tasks.templates import Template
from strop.rewards.judges.chat_client import JudgeCache

Operator = TaskOperator | DatasetOperator
_Scope = Literal["rows", "model", "dataset"]


@dataclass(frozen=True, slots=True)
class OperatorContext:
    """Services that operators are made with, in addition to their sections."""

    services: PipelineServices | None
    """Services of the run; None in a worker process, which makes operators of scope `rows` only."""
    replies: JudgeCache | None
    """Cache of the replies of models; None in a worker process."""
    say: Say
    sources: list[Callable[[int], str]] = field(default_factory=list)
    """Locations of the rows of each dataset, the first one that of `data.train`."""

    def language_model(self, section: Model) -> LanguageModel:
        """A language model with the cache."""
        assert self.replies is not None
        return LanguageModel(section, self.services, self.replies, self.say)

    def pass_rate(self, section: PassRateConfig) -> PassRate:
        """The operator `pass_rate`, with the cache."""
        assert self.replies is not None and self.services is not None
        return PassRate(section, self.services, self.replies)


@dataclass(frozen=True, slots=True)
class OperatorType:
    """A type of operator."""

    scope: _Scope
    """Rows that it needs at once: `rows` and `model` any, of which `model` stays in the main process; `dataset` all."""
    make: Callable[[Any, OperatorContext], Operator]


def _data_juicer(section: DataJuicerTasksConfig, _: OperatorContext) -> Operator:
    from strop.pipelines.juicer.operators import DataJuicerTasks  # a service, which no other operator needs

    return DataJuicerTasks(section)


OPERATORS: dict[type[Section], OperatorType] = {
    LengthFilterConfig: OperatorType(
        "rows", lambda section, context: LengthFilter(section, context.services)
    ),
    LanguageFilterConfig: OperatorType("rows", lambda section, _: LanguageFilter(section)),
    RangeFilterConfig: OperatorType("rows", lambda section, _: RangeFilter(section)),
    TemplateConfig: OperatorType("rows", lambda section, _: Template(section)),
    CustomTaskOperatorConfig: OperatorType("rows", lambda section, _: CustomTaskOperator(section)),
    LlmScoreConfig: OperatorType(
        "model", lambda section, context: LlmScore(section, context.language_model(section.model))
    ),
    LlmMapConfig: OperatorType(
        "model", lambda section, context: LlmMap(section, context.language_model(section.model))
    ),
    SynthesizeConfig: OperatorType(
        "model", lambda section, context: Synthesize(section, context.language_model(section.model))
    ),
    PassRateConfig: OperatorType("model", lambda section, context: context.pass_rate(section)),
    DeduplicateConfig: OperatorType("dataset", lambda section, _: Deduplicate(section)),
    DataJuicerTasksConfig: OperatorType("dataset", _data_juicer),
    SampleConfig: OperatorType("dataset", lambda section, _: Sample(section)),
    OrderConfig: OperatorType("dataset", lambda section, _: Order(section)),
    MixtureConfig: OperatorType("dataset", lambda section, context: Mix(section, context.sources)),
}


def scope_of(section: TaskOperatorConfig) -> _Scope:
    """The rows that an operator needs at once; an operator that counts tokens stays in the main process."""
    if isinstance(section, LengthFilterConfig) and section.unit == "tokens":
        return "model"
    return OPERATORS[type(section)].scope


def make_operator(section: TaskOperatorConfig, context: OperatorContext) -> Operator:
    """The operator of a section. Raises ConfigError for one that cannot be made."""
    return OPERATORS[type(section)].make(section, context)


@contextmanager
def open_replies(folder: Path) -> Iterator[JudgeCache]:
    """The cache of replies in a folder."""
    cache = JudgeCache(folder)
    try:
        yield cache
    finally:
        cache.close()


class CustomTaskOperator:
    """Operator of the user. It is called with a list of rows and returns a list of rows.

    A row that comes back, changed or not, is the same dict, or a copy of it. Further rows are new ones. Where the class
    has attributes `reads` and `adds`, they name columns.
    """

    def __init__(self, section: CustomTaskOperatorConfig) -> None:
        """Raises ConfigError for a class that cannot be made."""
        self._name = section.operator
        what = f"data.pipeline: operator {section.operator!r}"
        kind = ImportPath(section.operator, what, "Class", (), ConfigError).load()
        self._operator = construct(kind, what, ConfigError, **section.args)
        if not callable(self._operator):
            raise ConfigError(f"{what}: its objects cannot be called; write a method __call__(self, rows).")

    @property
    def reads(self) -> tuple[str, ...]:
        return tuple(getattr(self._operator, "reads", ()))

    @property
    def adds(self) -> tuple[str, ...]:
        return tuple(getattr(self._operator, "adds", ()))

    def __call__(self, table: pa.Table) -> Processed:
        rows = table.to_pylist()
        try:
            result = self._operator([dict(row) for row in rows])
        except StropError:
            raise
        except Exception as error:  # the user's code
            raise DataError(f"it raised {type(error).__name__}: {error}") from error
        found = self._checked(result)
        numbers = {row[ROW_ID]: number for number, row in enumerate(rows)}
        parents = np.array([numbers.get(row.get(ROW_ID), -1) for row in found], np.int64)
        new = to_table([{**row, ROW_ID: row.get(ROW_ID, -1)} for row in found], table.column_names)
        kept = {*parents.tolist()}
        removals = [Removal(row, f"removed by {self._name}") for row in range(len(rows)) if row not in kept]
        return Processed(new, parents, removals)

    def _checked(self, result: Any) -> Sequence[dict[str, Any]]:
        if isinstance(result, list | tuple) and all(isinstance(row, dict) for row in result):
            return result
        kinds = {type(row).__name__ for row in result} if isinstance(result, list | tuple) else set()
        what = f"a list with {', '.join(sorted(kinds))}" if kinds else f"a {type(result).__name__}"
        raise DataError(f"it returned {what}; an operator returns a list of rows, which are dicts")
