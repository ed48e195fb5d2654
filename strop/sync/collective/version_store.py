"""The trainer's versions in memory, and the signals of trainer and explorer; several threads may use them."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping

from strop.inference.weight_transfer.buckets import Bucket
from strop.sync.transport import SignalName


class VersionStore:
    """Packed versions of the weights, and signals."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._versions: dict[int, tuple[Bucket, ...]] = {}
        self._signals: dict[SignalName, int] = {}

    def versions(self) -> dict[int, tuple[Bucket, ...]]:
        """The versions, oldest first. Their tensors never change."""
        with self._lock:
            return dict(sorted(self._versions.items()))

    def put(self, version: int, buckets: tuple[Bucket, ...]) -> None:
        """Add a version."""
        with self._lock:
            self._versions[version] = buckets

    def delete(self, versions: Collection[int]) -> None:
        """Delete versions."""
        with self._lock:
            for version in versions:
                del self._versions[version]

    def set_signals(self, signals: Mapping[SignalName, int]) -> None:
        """Set signals to these numbers."""
        with self._lock:
            self._signals.update(signals)

    def get_signal(self, signal: SignalName) -> int:
        """The number of a signal; 0 if it was never set."""
        with self._lock:
            return self._signals.get(signal, 0)

    def signals(self, names: Collection[SignalName]) -> dict[SignalName, int]:
        """The numbers of those of these signals that were set."""
        with self._lock:
            return {name: self._signals[name] for name in names if name in self._signals}
