"""`data.pipeline`: operators that prepare the training tasks before the run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath
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


EXPORT_SUFFIXES = (".jsonl", ".parquet")
"""Suffixes of the files that a result is written to."""


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
    """Table of the database of `export`, which is replaced; null for a file."""

    def faults(self) -> Iterator[str]:
        """Targets of the export that nothing can be written to."""
        to_database = self.export is not None and "://" in self.export
        if to_database and self.export_table is None:
            yield "export names a database; write the table of it too, such as export_table: tasks"
        if not to_database and self.export_table is not None:
            yield "export_table needs a database in export, such as sqlite:///tasks.db"
        if self.export is None or to_database:
            return
        if PurePath(self.export).suffix not in EXPORT_SUFFIXES:
            yield f"export: {self.export} is neither a file .jsonl or .parquet nor the URL of a database"
