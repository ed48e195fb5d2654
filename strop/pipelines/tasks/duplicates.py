"""Task operators that remove duplicates: rows with equal texts, or with similar ones."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from strop.config.schema.task_pipeline import DeduplicateConfig
from strop.errors import MissingExtraError
from strop.pipelines.tasks.columns import as_text, column
from strop.pipelines.tasks.parts import Parts
from strop.pipelines.tasks.protocol import Processed, Removal

_SEED = 1


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
