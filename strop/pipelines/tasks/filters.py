"""Task operators that remove rows: by length, language or the value of a column, and duplicates."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa

from strop.config.schema.task_pipeline import (
    DeduplicateConfig,
    LanguageFilterConfig,
    LengthFilterConfig,
    RangeFilterConfig,
)
from strop.errors import MissingExtraError
from strop.pipelines.tasks.operator import (
    Parts,
    PipelineServices,
    Processed,
    Removal,
    RowError,
    Scores,
    as_text,
    column,
    kept,
    texts,
    with_column,
)

_SEED = 1


@dataclass(frozen=True, slots=True)
class LengthFilter:
    """Keeps rows whose text has a length between bounds."""

    section: LengthFilterConfig
    services: PipelineServices | None

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.section.column,)

    @property
    def adds(self) -> tuple[str, ...]:
        return () if self.section.output is None else (self.section.output,)

    def __call__(self, table: pa.Table) -> Processed:
        lengths = self._lengths(texts(table, self.section.column))
        if self.section.output is not None:
            table = with_column(table, self.section.output, lengths)
        removals = outside(lengths, self.section.min, self.section.max, self.section.unit)
        return kept(table, removals, {self.section.unit: lengths.astype(np.float64)})

    def _lengths(self, values: Sequence[str]) -> np.ndarray[Any, Any]:
        match self.section.unit:
            case "characters":
                return np.array([len(value) for value in values], np.int64)
            case "words":
                return np.array([len(value.split()) for value in values], np.int64)
            case "tokens":
                assert self.services is not None
                return self.services.count_tokens(values)


def outside(
    values: np.ndarray[Any, Any], lowest: float | None, highest: float | None, what: str
) -> list[Removal]:
    """Removals of the rows whose value is below or above the bounds; NaN is neither."""
    found = []
    if lowest is not None:
        below = np.flatnonzero(values < lowest)
        found += [Removal(row, f"{what} < {lowest:g}", f"{values[row]:g}") for row in below.tolist()]
    if highest is not None:
        above = np.flatnonzero(values > highest)
        found += [Removal(row, f"{what} > {highest:g}", f"{values[row]:g}") for row in above.tolist()]
    return sorted(found, key=lambda removal: removal.row)


@dataclass(frozen=True, slots=True)
class LanguageFilter:
    """Keeps rows whose text is in one of some languages."""

    section: LanguageFilterConfig

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.section.column,)

    @property
    def adds(self) -> tuple[str, ...]:
        return () if self.section.output is None else (self.section.output,)

    def __call__(self, table: pa.Table) -> Processed:
        identify = _identifier()
        found = [identify(text) for text in texts(table, self.section.column)]
        if self.section.output is not None:
            table = with_column(table, self.section.output, [language for language, _ in found])
        removals = []
        for row, (language, score) in enumerate(found):
            if language not in self.section.languages:
                removals.append(
                    Removal(row, f"language is not {', '.join(self.section.languages)}", language)
                )
            elif score < self.section.min_score:
                removals.append(Removal(row, f"language score < {self.section.min_score:g}", f"{score:.3f}"))
        return kept(table, removals, {"language_score": np.array([score for _, score in found])})


@cache
def _identifier() -> Callable[[str], tuple[str, float]]:
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    except ImportError:
        raise MissingExtraError(
            "data.pipeline: the operator language needs py3langid: pip install 'strop[pipelines]'"
        ) from None
    identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    return lambda text: identifier.classify(text)


@dataclass(frozen=True, slots=True)
class RangeFilter:
    """Keeps rows whose value of a column is between bounds, or one of some values."""

    section: RangeFilterConfig

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.section.column,)

    adds = ()

    def __call__(self, table: pa.Table) -> Processed:
        values = column(table, self.section.column).to_pylist()
        missing = [row for row, value in enumerate(values) if value is None]
        if missing and self.section.missing == "error":
            raise RowError(
                missing[0], f"has no {self.section.column!r} (it is null); missing: keep or drop accepts it"
            )
        removals = []
        if self.section.missing == "drop":
            removals = [Removal(row, f"no {self.section.column}") for row in missing]
        if self.section.values is not None:
            scores: dict[str, Scores] = {}
            for row, value in enumerate(values):
                if value is not None and value not in self.section.values:
                    removals.append(
                        Removal(row, f"{self.section.column} is none of the values", str(value)[:80])
                    )
        else:
            numbers = self._numbers(values)
            scores = {self.section.column: numbers[~np.isnan(numbers)]}
            removals += outside(numbers, self.section.min, self.section.max, self.section.column)
        return kept(table, sorted(removals, key=lambda removal: removal.row), scores)

    def _numbers(self, values: Sequence[Any]) -> Scores:
        for row, value in enumerate(values):
            if value is not None and not isinstance(value, int | float):
                raise RowError(
                    row, f"has {str(value)[:80]!r} as {self.section.column!r}, which is not a number"
                )
        return np.array([np.nan if value is None else value for value in values], np.float64)


@dataclass(frozen=True, slots=True)
class Deduplicate:
    """Keeps the first of equal or similar rows."""

    section: DeduplicateConfig

    @property
    def reads(self) -> tuple[str, ...]:
        return self.section.columns

    adds = ()

    def __call__(self, rows: Parts) -> Iterator[Processed]:
        known = _Exact() if self.section.method == "exact" else _Similar(self.section)
        first = 0
        for table in rows.tables():
            removals, keep = [], []
            for row, earlier in enumerate(known.find(self._texts(table), first)):
                if earlier is None:
                    keep.append(row)
                else:
                    removals.append(Removal(first + row, f"{self.section.method} duplicate", like=earlier))
            inside = np.array(keep, np.int64)
            yield Processed(table.take(inside), inside + first, removals)
            first += table.num_rows

    def _texts(self, table: pa.Table) -> list[str]:
        columns = [column(table, name).to_pylist() for name in self.section.columns]
        joined = ["\x1f".join(map(as_text, values)) for values in zip(*columns, strict=True)]
        return [" ".join(text.lower().split()) for text in joined] if self.section.normalize else joined


@dataclass(frozen=True, slots=True)
class _Exact:
    """Digests of the texts so far."""

    first: dict[bytes, int] = field(default_factory=dict)

    def find(self, texts: list[str], begin: int) -> Iterator[int | None]:
        """The number of the first row with the same text, if it is another row."""
        for number, text in enumerate(texts, begin):
            found = self.first.setdefault(hashlib.blake2b(text.encode(), digest_size=16).digest(), number)
            yield None if found == number else found


class _Similar:
    """Index of the MinHash signatures of the rows that are kept."""

    def __init__(self, section: DeduplicateConfig) -> None:
        try:
            import datasketch
        except ImportError:
            raise MissingExtraError(
                "data.pipeline: the operator deduplicate with method: minhash needs datasketch: "
                "pip install 'strop[pipelines]'"
            ) from None
        self._section = section
        self._make = datasketch.MinHash
        self._index = datasketch.MinHashLSH(section.similarity, section.permutations)
        self._kept: dict[int, Any] = {}

    def find(self, texts: list[str], begin: int) -> Iterator[int | None]:
        """The number of a similar row before, if there is one: of several, the first."""
        grams = [_ngrams(text, self._section.ngram_words) for text in texts]
        signatures = self._make.bulk(grams, num_perm=self._section.permutations, seed=_SEED)
        for number, signature in enumerate(signatures, begin):
            similar = [row for row in self._index.query(signature) if self._is_similar(row, signature)]
            if similar:
                yield min(similar)
            else:
                self._index.insert(number, signature)
                self._kept[number] = signature
                yield None

    def _is_similar(self, row: int, signature: Any) -> bool:
        return bool(self._kept[row].jaccard(signature) >= self._section.similarity)


def _ngrams(text: str, size: int) -> list[bytes]:
    """The n-grams of words of a text, each once; the text itself if it has fewer words."""
    words = text.split()
    return list({" ".join(words[at : at + size]).encode() for at in range(max(1, len(words) - size + 1))})
