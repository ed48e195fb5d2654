"""Task operators that ask a language model: scores, new columns, and variants of rows."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from strop.config.schema.task_pipeline import (
    InvalidRepliesConfig,
    LlmMapConfig,
    LlmScoreConfig,
    SynthesizeConfig,
)
from strop.errors import ConfigError, DataError
from strop.pipelines.tasks.columns import as_text, column, to_table, with_column
from strop.pipelines.tasks.filters import outside
from strop.pipelines.tasks.language_model import LanguageModel
from strop.pipelines.tasks.parts import ROW_ID
from strop.pipelines.tasks.prompts import SCORE_PROMPTS
from strop.pipelines.tasks.protocol import Processed, Removal, RowError, kept
from strop.pipelines.tasks.templates import RowTemplate
from strop.workers.json_text import parse_prefix

INVALID = "no usable reply"
"""Reason of a row that is removed, and name of the count of rows, for which the model gave no usable reply."""


@dataclass(slots=True)
class InvalidCount:
    """Number of rows without a usable reply so far, and its limit."""

    section: InvalidRepliesConfig
    rows: int = 0
    invalid: int = 0

    def add(self, results: Sequence[Any], quotes: Sequence[str]) -> list[int]:
        """The rows without a result. Raises RowError at the first one under `treatment: error`, DataError when they
        are too many: then at least `1 / max_fraction` rows, or all of the first group, have been seen."""
        bad = [row for row, result in enumerate(results) if result is None]
        self.rows += len(results)
        self.invalid += len(bad)
        if bad and self.section.treatment == "error":
            raise RowError(
                bad[0],
                f"got no usable reply in {self.section.attempts} attempts to: {quotes[bad[0]][:200]!r}",
            )
        if self.invalid > self.section.max_fraction * self.rows:
            raise DataError(
                f"the language model gave no usable reply for {self.invalid} of {self.rows} rows, more than "
                f"invalid.max_fraction {self.section.max_fraction:g}. Correct prompt and pattern, take another model, "
                f"or raise max_fraction. The first one was: {quotes[bad[0]][:200]!r}"
            )
        return bad

    def removals(self, bad: Sequence[int]) -> list[Removal]:
        """Removals of the rows, under `treatment: drop`."""
        return [Removal(row, INVALID) for row in bad] if self.section.treatment == "drop" else []


class LlmScore:
    """Scores rows by a language model, and keeps those with a score between bounds."""

    def __init__(self, section: LlmScoreConfig, model: LanguageModel) -> None:
        """Raises ConfigError for an invalid prompt or pattern."""
        self._section = section
        self._model = model
        self._prompt = RowTemplate(section.prompt or SCORE_PROMPTS[section.criterion], "prompt", ("fields",))
        self._pattern = compile_pattern(section.pattern)
        self._invalid = InvalidCount(section.invalid)

    @property
    def reads(self) -> tuple[str, ...]:
        return (*self._section.input_columns, *self._prompt.reads)

    @property
    def adds(self) -> tuple[str, ...]:
        return (self._section.score_column,)

    def __call__(self, table: pa.Table) -> Processed:
        prompts = self._prompts(table)
        values = self._model.usable(prompts, self._parse, self._section.invalid)
        bad = self._invalid.add(values, prompts)
        table = with_column(table, self._section.score_column, pa.array(values, pa.float64()))
        scores = np.array([np.nan if value is None else value for value in values])
        removals = outside(
            scores, self._section.min_score, self._section.max_score, self._section.score_column
        )
        removals = sorted([*removals, *self._invalid.removals(bad)], key=lambda removal: removal.row)
        return kept(
            table,
            removals,
            {self._section.score_column: scores[~np.isnan(scores)]},
            {INVALID: len(bad)} if bad else {},
        )

    def _prompts(self, table: pa.Table) -> list[str]:
        names = self._section.field_names or self._section.input_columns
        inputs = [column(table, name).to_pylist() for name in self._section.input_columns]
        for name, values in zip(self._section.input_columns, inputs, strict=True):
            if None in values:
                raise RowError(values.index(None), f"has no {name!r} (it is null)")
        rows = plain_rows(table)
        return [
            self._prompt.render(
                {
                    **row,
                    "fields": [
                        (name, as_text(values[number])) for name, values in zip(names, inputs, strict=True)
                    ],
                },
                number,
            )
            for number, row in enumerate(rows)
        ]

    def _parse(self, reply: str) -> float | None:
        return scaled_score(self._pattern, self._section.scale, reply)


class LlmMap:
    """Writes a column with the replies of a language model."""

    def __init__(self, section: LlmMapConfig, model: LanguageModel) -> None:
        """Raises ConfigError for an invalid prompt or pattern."""
        self._section = section
        self._model = model
        self._prompt = RowTemplate(section.prompt, "prompt")
        self._pattern = None if section.pattern is None else compile_pattern(section.pattern)
        self._invalid = InvalidCount(section.invalid)

    @property
    def reads(self) -> tuple[str, ...]:
        return self._prompt.reads

    @property
    def adds(self) -> tuple[str, ...]:
        return (self._section.output,)

    def __call__(self, table: pa.Table) -> Processed:
        prompts = [self._prompt.render(row, number) for number, row in enumerate(plain_rows(table))]
        values = self._model.usable(prompts, self._parse, self._section.invalid)
        bad = self._invalid.add(values, prompts)
        table = with_column(table, self._section.output, pa.array(values, pa.string()))
        return kept(table, self._invalid.removals(bad), counts={INVALID: len(bad)} if bad else {})

    def _parse(self, reply: str) -> str | None:
        found = reply if self._pattern is None else last_match(self._pattern, reply)
        return found.strip() or None if found is not None else None


class Synthesize:
    """Adds variants of rows that a language model writes."""

    def __init__(self, section: SynthesizeConfig, model: LanguageModel) -> None:
        """Raises ConfigError for an invalid prompt."""
        self._section = section
        self._model = model
        self._prompt = RowTemplate(section.prompt, "prompt", ("variant",))
        self._invalid = InvalidCount(section.invalid)

    @property
    def reads(self) -> tuple[str, ...]:
        return self._prompt.reads

    @property
    def adds(self) -> tuple[str, ...]:
        return (*self._section.columns, *([self._section.output] if self._section.output else []))

    def __call__(self, table: pa.Table) -> Processed:
        rows, count = table.to_pylist(), self._section.variants
        prompts = [
            self._prompt.render({**row, "variant": variant}, number)
            for number, row in enumerate(plain_rows(table))
            for variant in range(1, count + 1)
        ]
        values = self._model.usable(prompts, self._parse, self._section.invalid)
        bad = self._invalid.add(values, prompts)
        found: list[dict[str, Any]] = []
        parents: list[int] = []
        for number, row in enumerate(rows):
            written = values[number * count : (number + 1) * count]
            variants: list[tuple[int, dict[str, Any]]] = [(0, {})] if self._section.keep_original else []
            variants += [(n, value) for n, value in enumerate(written, 1) if value is not None]
            for variant, value in variants:
                numbered = {self._section.output: variant} if self._section.output else {}
                found.append({**row, **value, **numbered})
                parents.append(number)
        removed = sorted({*range(len(rows))} - {*parents})
        return Processed(
            to_table(found, [*table.column_names, *self.adds]),
            np.array(parents, np.int64),
            [Removal(row, "replaced by variants, and none was usable") for row in removed],
            counts={INVALID: len(bad)} if bad else {},
        )

    def _parse(self, reply: str) -> dict[str, Any] | None:
        names = self._section.columns
        if len(names) == 1:
            return {names[0]: reply.strip()} if reply.strip() else None
        for match in re.finditer(r"\{", reply):
            try:
                value, _ = parse_prefix(reply, match.start())
            except ValueError:
                continue
            if isinstance(value, dict) and all(value.get(name) is not None for name in names):
                return {name: value[name] for name in names}
        return None


def plain_rows(table: pa.Table) -> list[dict[str, Any]]:
    """The rows without their identities."""
    return (table.drop_columns([ROW_ID]) if ROW_ID in table.column_names else table).to_pylist()


def compile_pattern(text: str) -> re.Pattern[str]:
    """A regular expression with one group. Raises ConfigError for another text."""
    try:
        pattern = re.compile(text)
    except re.error as error:
        raise ConfigError(f"data.pipeline: pattern {text!r} is not a regular expression: {error}.") from error
    if pattern.groups != 1:
        raise ConfigError(
            f"data.pipeline: pattern {text!r} has {pattern.groups} groups; write one, around the value."
        )
    return pattern


def scaled_score(pattern: re.Pattern[str], scale: tuple[float, float], reply: str) -> float | None:
    """The last score in a reply, from 0 to 1; None for a reply without one, or with one outside of the scale."""
    found = last_match(pattern, reply)
    try:
        score = float(found) if found is not None else math.nan
    except ValueError:
        return None
    lowest, highest = scale
    scaled = (score - lowest) / (highest - lowest)
    return scaled if 0 <= scaled <= 1 else None


def last_match(pattern: re.Pattern[str], text: str) -> str | None:
    """The group of the last match; None if there is none."""
    found = pattern.findall(text)
    return found[-1] if found else None
