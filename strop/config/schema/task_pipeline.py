"""`data.pipeline`: operators that prepare the training tasks before the run."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from strop.config.schema.base import Section
from strop.config.schema.task_filters import (
    DeduplicateConfig,
    LanguageFilterConfig,
    LengthFilterConfig,
    LlmScoreConfig,
    PassRateConfig,
    RangeFilterConfig,
)
from strop.config.schema.task_operators import (
    CustomTaskOperatorConfig,
    DataJuicerTasksConfig,
    LlmMapConfig,
    MixtureConfig,
    OrderConfig,
    SampleConfig,
    SynthesizeConfig,
    TemplateConfig,
)

TaskOperatorConfig = Annotated[
    LengthFilterConfig
    | LanguageFilterConfig
    | DeduplicateConfig
    | RangeFilterConfig
    | LlmScoreConfig
    | PassRateConfig
    | TemplateConfig
    | LlmMapConfig
    | SynthesizeConfig
    | SampleConfig
    | MixtureConfig
    | OrderConfig
    | DataJuicerTasksConfig
    | CustomTaskOperatorConfig,
    Field(discriminator="type"),
]


ROW_OPERATORS = (
    LengthFilterConfig,
    LanguageFilterConfig,
    RangeFilterConfig,
    TemplateConfig,
    LlmScoreConfig,
    LlmMapConfig,
    SynthesizeConfig,
    CustomTaskOperatorConfig,
)
"""Operators that also run on the rows of `data.queue` and `data.stream`, which are read one after another."""


class TaskPipelineConfig(Section):
    """Operators on the rows of `data.train`, before the run. The result is cached, and the run reads it instead of
    `path`; the other settings of `data.train` apply to the result. The rows of `data.queue` and `data.stream`
    pass through the operators when they are read."""

    operators: tuple[TaskOperatorConfig, ...] = Field(min_length=1)
    """Operators, in order."""
    columns: tuple[str, ...] | None = None
    """Columns of the result; null for all."""
    processes: int = Field(1, gt=0)
    """Number of processes for operators that neither ask a model nor compare rows; 1 is this process. With
    `cluster.address` they are tasks on the nodes of the Ray cluster, one per free CPU."""
    cache: str | None = None
    """Folder of the results; null for `task_pipelines` in the folder `output`."""
    export: str | None = None
    """File (`.jsonl` or `.parquet`) or database (`sqlite:///tasks.db`) that the result is also written to; null for
    none."""
    export_table: str | None = None
    """Table of the database of `export`, which is replaced."""
