"""Registry of task operators: how each section of `data.pipeline` becomes an operator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

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
from strop.pipelines.tasks.custom import CustomTaskOperator
from strop.pipelines.tasks.data_juicer import DataJuicerTasks
from strop.pipelines.tasks.duplicates import Deduplicate
from strop.pipelines.tasks.filters import LanguageFilter, LengthFilter, RangeFilter
from strop.pipelines.tasks.language_model import LanguageModel, Model
from strop.pipelines.tasks.llm_operators import LlmMap, LlmScore, Synthesize
from strop.pipelines.tasks.order import Mix, Order, Sample
from strop.pipelines.tasks.pass_rate import PassRate
from strop.pipelines.tasks.protocol import DatasetOperator, PipelineServices, Say, TaskOperator
from strop.pipelines.tasks.templates import Template
from strop.rewards.judges.chat_client import JudgeCache

Operator = TaskOperator | DatasetOperator
Scope = Literal["rows", "model", "dataset"]


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

    scope: Scope
    """Rows that it needs at once: `rows` and `model` any, of which `model` stays in the main process; `dataset` all."""
    make: Callable[[Any, OperatorContext], Operator]


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
    DataJuicerTasksConfig: OperatorType("dataset", lambda section, _: DataJuicerTasks(section)),
    SampleConfig: OperatorType("dataset", lambda section, _: Sample(section)),
    OrderConfig: OperatorType("dataset", lambda section, _: Order(section)),
    MixtureConfig: OperatorType("dataset", lambda section, context: Mix(section, context.sources)),
}


def scope_of(section: TaskOperatorConfig) -> Scope:
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
