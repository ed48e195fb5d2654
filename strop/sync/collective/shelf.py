"""What the trainer has for the explorer, and what that one has said: seen by several threads."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping

from strop.sync.collective.parcel import Bucket
from strop.sync.versions import Word


class Shelf:
    """Versions of the weights, packed, and the numbers beside them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._versions: dict[int, tuple[Bucket, ...]] = {}
        self._numbers: dict[Word, int] = {}

    def all(self) -> dict[int, tuple[Bucket, ...]]:
        """The versions, oldest first. Their tensors never change."""
        with self._lock:
            return dict(sorted(self._versions.items()))

    def put(self, version: int, buckets: tuple[Bucket, ...]) -> None:
        """From now on it is there."""
        with self._lock:
            self._versions[version] = buckets

    def drop(self, versions: Collection[int]) -> None:
        """From now on they are not."""
        with self._lock:
            for version in versions:
                del self._versions[version]

    def say(self, numbers: Mapping[Word, int]) -> None:
        """These numbers are under these words now."""
        with self._lock:
            self._numbers.update(numbers)

    def said(self, word: Word) -> int:
        """The number under a word; 0 where there is none."""
        with self._lock:
            return self._numbers.get(word, 0)

    def spoken(self, words: Collection[Word]) -> dict[Word, int]:
        """Those of the words that there is a number under."""
        with self._lock:
            return {word: self._numbers[word] for word in words if word in self._numbers}
