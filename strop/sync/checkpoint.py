"""Weights go from trainer to explorer through a folder, wherever the two are.

Publisher   consumes the trainer's weights; waits for nobody; is unblocked by nothing.
Subscriber  consumes published versions; waits for one that its step may be sampled with; is unblocked by
            the publisher, or by the end of its patience.
"""

from __future__ import annotations

import time
from pathlib import Path

from strop.buffer.wait import Check, Wait
from strop.config.schema.synchronizer import CheckpointSync
from strop.errors import CheckpointError, ModelError
from strop.protocols import InferenceEngine, TrainingEngine
from strop.sync.style import Window, asks, publishes, window
from strop.sync.versions import ANSWERED, ASKED, TAKEN, Versions

_PAUSE_SECONDS = 0.05


class Publisher:
    """The trainer's side."""

    def __init__(self, engine: TrainingEngine, section: CheckpointSync, folder: Path) -> None:
        """`folder` is the run's."""
        self._engine = engine
        self._style = section.style
        self._versions = Versions(folder / section.folder)
        self._version = 0
        self._published = 0

    def after(self, step: int, last: int) -> None:
        """Publish what step `step` of `last` has left, where that is due. Said of the start, too."""
        self._version = step
        if publishes(self._style, step, last):
            self._publish()

    def answer(self) -> None:
        """Publish the weights if the explorer has asked for new ones; for when no update is under way."""
        asked = self._versions.said(ASKED)
        if asked > self._versions.said(ANSWERED):
            self._publish()
            self._versions.say(ANSWERED, asked)

    def _publish(self) -> None:
        """Versions before the one that the explorer took last go."""
        if self._version != self._published:
            self._versions.write(self._version, self._engine.iter_weights())
            self._versions.delete_before(self._versions.said(TAKEN))
            self._published = self._version


class Subscriber:
    """The explorer's side."""

    def __init__(
        self, sampler: InferenceEngine, section: CheckpointSync, folder: Path, *, check: Check
    ) -> None:
        """The sampler has the model as it is, version 0. `check` is called while it waits, and may raise."""
        self._sampler = sampler
        self._section = section
        self._versions = Versions(folder / section.folder)
        self._check = check
        self.version = 0
        """What the sampler has."""

    def before(self, step: int) -> int:
        """Give the sampler what step `step` is to be sampled with; returns its version."""
        if asks(self._section.style, step):
            self._ask(step)
        return self.take(window(self._section.style, step))

    def take(self, wanted: Window) -> int:
        """Give the sampler the newest version that is wanted, once there is one; returns it.

        Raises `CheckpointError` when that takes too long, and for weights of another model.
        """
        wait = Wait(self._section.timeout_seconds, self._check)
        while (found := wanted.newest([self.version, *self._versions.all()])) is None:
            self._sleep(wait, f"version {wanted.lowest} of the weights")
        self._versions.say(TAKEN, found)  # before it is read: from now on it stays
        if found != self.version:
            self._load(found)
        return found

    def _load(self, version: int) -> None:
        try:
            self._sampler.load(self._versions.read(version), version)
        except ModelError as error:
            raise CheckpointError(
                f"Version {version} of the weights in {self._versions.folder} is of another model than the "
                f"explorer's: {error}. Write the same `model` for both halves of the run, and let each run "
                "have a `synchronizer.folder` of its own."
            ) from error
        self.version = version

    def _ask(self, step: int) -> None:
        self._versions.say(ASKED, step)
        wait = Wait(self._section.timeout_seconds, self._check)
        while self._versions.said(ANSWERED) < step:
            self._sleep(wait, "new weights, which were asked for")

    def _sleep(self, wait: Wait, for_what: str) -> None:
        if wait.left <= 0:
            there = ", ".join(map(str, self._versions.all())) or "none"
            raise CheckpointError(
                f"The explorer has waited {wait.seconds:.0f} s for {for_what}, in {self._versions.folder}; "
                f"published there: {there}. Is the trainer at work, and does it write to this folder? If its "
                "steps take that long, set `synchronizer.timeout_seconds` higher."
            )
        time.sleep(wait.slice(f"{for_what} from the trainer", _PAUSE_SECONDS))
