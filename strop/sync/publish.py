"""Weights go from trainer to explorer, wherever the two are and whichever way the weights take.

Publisher   consumes the trainer's weights; waits for nobody; is unblocked by nothing.
Subscriber  consumes published versions; waits for one that its step may be sampled with; is unblocked by
            the publisher, or by the end of its patience.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from strop.buffer.wait import Check, Wait
from strop.config.schema.synchronizer import Fixed, Style
from strop.errors import CheckpointError, ModelError
from strop.protocols import InferenceEngine, Snapshot, TrainingEngine
from strop.sync.style import Window, asks, kept, learned_in, publishes, window
from strop.sync.versions import ANSWERED, ASKED, SHIFT, TAKEN, Inbox, Outbox, VersionGone

_PAUSE_SECONDS = 0.05


class Publisher:
    """The trainer's side."""

    def __init__(
        self,
        engine: TrainingEngine,
        style: Style,
        outbox: Outbox,
        *,
        first: int = 0,
        pinned: int | None = None,
    ) -> None:
        """Rollouts begin after step `first`. `pinned` is the version that an explorer would do its step again
        with, if it was killed in it: when the trainer comes by it (once more), it is published in any case.
        """
        self._engine = engine
        self._style = style
        self._outbox = outbox
        self._first = first
        self._pinned = pinned
        self._version = 0
        self._published: int | None = None

    def after(self, step: int, last: int) -> None:
        """Publish what step `step` of `last` has left, where that is due. Said of the start, too."""
        self._version = step
        if step > 0 and (publishes(self._style, step, last, self._first) or step == self._pinned):
            self._publish()

    def answer(self) -> None:
        """Publish the weights if the explorer has asked for new ones; for when no update is under way."""
        asked = self._outbox.said(ASKED)
        if asked > self._outbox.said(ANSWERED):
            self._publish()
            self._outbox.say(ANSWERED, asked)

    def tell_shift(self, groups: int) -> None:
        """See `SHIFT`."""
        self._outbox.say(SHIFT, groups)

    def snapshot(self) -> Snapshot | None:
        """What a checkpoint of now must hold, so that the explorer can go on with it."""
        return self._outbox.snapshot(self._version)

    def begin(self) -> None:
        """The trainer is at work, whatever an earlier start of it said of its end."""
        self._outbox.begin()

    def finish(self) -> None:
        """The run is through, perhaps before its last step, and the explorer perhaps not yet."""
        self._publish()
        self._outbox.finish(self._version)

    def _publish(self) -> None:
        """Versions that the explorer will not want any more go."""
        if self._version != self._published:
            self._outbox.write(self._version, self._engine.iter_weights())
            there = self._outbox.all()
            stay = kept(self._style, there, max(self._outbox.said(TAKEN), self._pinned or 0))
            self._outbox.delete([version for version in there if version not in stay])
            self._published = self._version


class Subscriber:
    """The explorer's side."""

    def __init__(
        self,
        sampler: InferenceEngine,
        style: Style,
        inbox: Inbox,
        *,
        timeout_seconds: float,
        check: Check,
        first: int = 0,
    ) -> None:
        """The sampler has the model as it is, version 0. `check` is called while it waits, and may raise.
        Rollouts begin after step `first`."""
        self._sampler = sampler
        self._style = style
        self._inbox = inbox
        self._timeout_seconds = timeout_seconds
        self._check = check
        self._first = first
        self.version: int | None = 0
        """What the sampler has; None where it has parts of several."""
        self.load_seconds = 0.0
        """What the last load took."""

    def before(self, step: int) -> int:
        """Give the sampler what step `step` is to be sampled with; returns its version."""
        if asks(self._style, step, self._first):
            self._ask(step)
        return self.take(window(self._style, step, self._first))

    def before_groups(self, step: int, put: int, size: int) -> int:
        """The same where the trainer takes `size` groups as they come, of which so many are `put`."""
        if asks(self._style, step, self._first):
            self._ask(step)

        def wanted() -> Window:
            shift = self._inbox.said(SHIFT)
            return window(self._style, learned_in(put, shift, size, self._first), self._first)

        return self._take(wanted)

    def after(self, step: int) -> None:
        """Step `step` will not be done again: say so, where that says which versions are no longer wanted."""
        if isinstance(self._style, Fixed):
            self._inbox.say(TAKEN, window(self._style, step + 1, self._first).lowest)

    def has_ended(self, last: int) -> bool:
        """Whether the trainer has done all its steps up to `last`, and needs no more to learn from."""
        return self._inbox.ended() >= last

    def take_last(self, last: int) -> int:
        """Give the sampler the trainer's last weights: version `last`, or that with which it ended before."""
        wait = Wait(self._timeout_seconds, self._check)
        while (ended := self._inbox.ended()) == 0 and last not in self._inbox.all():
            self._sleep(wait, f"version {last} of the weights")
        return self.take(Window(ended or last, ended or last))

    def take(self, wanted: Window) -> int:
        """Give the sampler the newest version that is wanted, once there is one; returns it.

        Raises `CheckpointError` when that takes too long, and for weights of another model.
        """
        return self._take(lambda: wanted)

    def _take(self, wanted: Callable[[], Window]) -> int:
        wait = Wait(self._timeout_seconds, self._check)
        while True:
            found = self._find(wanted, wait)
            self._inbox.say(TAKEN, found)  # before it is read: from now on it stays
            try:
                self._load(found)
            except VersionGone:
                continue
            return found

    def _find(self, wanted: Callable[[], Window], wait: Wait) -> int:
        while True:
            own = [] if self.version is None else [self.version]
            now = wanted()
            found = now.newest([*own, *self._inbox.all()])
            if found is not None:
                return found
            self._sleep(wait, f"version {now.lowest} of the weights")

    def _load(self, version: int) -> None:
        started = time.perf_counter()
        if version != self.version:
            self.version = None
            try:
                self._sampler.load(self._inbox.read(version), version)
            except ModelError as error:
                raise CheckpointError(
                    f"Version {version} of the weights {self._inbox.where} is of another model than the "
                    f"explorer's: {error}. Write the same `model` for both halves of the run, and let no "
                    "other run have the same folder."
                ) from error
            self.version = version
        self.load_seconds = time.perf_counter() - started

    def _ask(self, step: int) -> None:
        self._inbox.say(ASKED, step)
        wait = Wait(self._timeout_seconds, self._check)
        while self._inbox.said(ANSWERED) < step and not self._inbox.ended():
            self._sleep(wait, "new weights, which were asked for")

    def _sleep(self, wait: Wait, for_what: str) -> None:
        if wait.left <= 0:
            there = ", ".join(map(str, self._inbox.all())) or "none"
            raise CheckpointError(
                f"The explorer has waited {wait.seconds:.0f} s for {for_what}, {self._inbox.where}; "
                f"published there: {there}. Is the trainer at work, and of this run? If its steps take that "
                "long, set `synchronizer.timeout_seconds` higher."
            )
        time.sleep(wait.slice(f"{for_what} from the trainer", _PAUSE_SECONDS))
