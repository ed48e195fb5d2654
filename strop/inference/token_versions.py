"""Versions of the weights that sampled the tokens of one completion."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from strop.types import IntArray


def versions_of_spans(spans: Iterable[tuple[int, int, int]], tokens: int) -> IntArray:
    """[C] Version of each of `tokens` tokens, from spans of (version, start, end)."""
    versions = np.zeros(tokens, dtype=np.int32)
    for version, start, end in spans:
        versions[start:end] = version
    return versions


def split_versions(versions: IntArray, current: int) -> tuple[int, IntArray | None]:
    """`version` and `token_versions` of a completion, from the version of each token [C].

    `current` is the version of a completion without tokens.
    """
    if len(versions) == 0:
        return current, None
    first = int(versions[0])
    return first, None if (versions == first).all() else versions
