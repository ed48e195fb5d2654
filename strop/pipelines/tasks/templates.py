"""Jinja templates over the columns of a row, and the task operator that writes columns with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from jinja2 import StrictUndefined, TemplateError, meta
from jinja2.sandbox import SandboxedEnvironment

from strop.config.schema.task_pipeline import TemplateConfig
from strop.errors import ConfigError
from strop.pipelines.tasks.operator import ROW_ID, Processed, RowError, with_column


class RowTemplate:
    """Template of a text over a row. Raises ConfigError for a template that cannot be read."""

    def __init__(self, text: str, what: str, provided: tuple[str, ...] = ()) -> None:
        """`what` names the template in messages; `provided` are variables that are no columns."""
        source = template_text(text, what)
        environment = SandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True)
        try:
            self._template = environment.from_string(source)
            self.reads = tuple(
                sorted(meta.find_undeclared_variables(environment.parse(source)) - {*provided})
            )
        except TemplateError as error:
            raise ConfigError(f"{what} is not a Jinja template: {error}.") from error
        self._what = what

    def render(self, row: Mapping[str, Any], number: int) -> str:
        """The text of a row. Raises RowError for a row that lacks a variable."""
        try:
            return self._template.render(row)
        except TemplateError as error:
            raise RowError(number, f"does not fit {self._what}: {error}") from None
        except (TypeError, ValueError, ArithmeticError) as error:
            raise RowError(number, f"does not fit {self._what}: {type(error).__name__}: {error}") from None


def template_text(text: str, what: str) -> str:
    """The text of a template, or of the `.jinja` file that is named. Raises ConfigError if it cannot be read."""
    if not text.endswith((".jinja", ".j2")) or "\n" in text:
        return text
    try:
        return Path(text).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{what}: the file {text} cannot be read: {error}.") from error


@dataclass(frozen=True, slots=True)
class Template:
    """Writes columns from templates."""

    section: TemplateConfig

    @property
    def reads(self) -> tuple[str, ...]:
        return tuple(
            dict.fromkeys(name for template in self._templates().values() for name in template.reads)
        )

    @property
    def adds(self) -> tuple[str, ...]:
        return tuple(self.section.columns)

    def __call__(self, table: pa.Table) -> Processed:
        rows = table.drop_columns([ROW_ID]).to_pylist() if ROW_ID in table.column_names else table.to_pylist()
        for name, template in self._templates().items():
            table = with_column(
                table, name, pa.array([template.render(row, n) for n, row in enumerate(rows)], pa.string())
            )
        return Processed(table, np.arange(len(rows)))

    def _templates(self) -> dict[str, RowTemplate]:
        return {name: RowTemplate(text, f"columns.{name}") for name, text in self.section.columns.items()}
