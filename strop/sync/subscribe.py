"""Subscriber of the explorer, over any transport: waits for a version that may sample its step.

It consumes published versions, and is unblocked by the publisher or by the timeout.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import Protocol

import torch

from strop.config.schema.buffer import FixedStyleConfig, StyleConfig
from strop.errors import CheckpointError, ModelError, WeightTransferError
from strop.sync.staleness_policy import (
    VersionWindow,
    requests_weights,
    training_step_for,
    version_window,
)
from strop.sync.transport import (
    GROUP_SHORTFALL,
    OLDEST_NEEDED,
    REQUESTED,
    SERVED,
    PublishedVersion,
    VersionGone,
    WeightReceiver,
)
from strop.workers.waiting import StopCheck, TimedWait

log = logging.getLogger("strop.sync")
_POLL_SECONDS = 0.05


class WeightLoader(Protocol):
    """The part of an inference engine that the subscriber uses."""

    @property
    def joins_process_groups(self) -> bool:
        """Whether `load_published` is supported."""
        ...

    def load_published(self, published: PublishedVersion, version: int) -> None:
        """Receive new weights from the trainer. Raises `WeightTransferError` if they do not arrive."""
        ...

    def load(self, weights: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Take new weights."""
        ...


class Subscriber:
    """The explorer's side: waits for versions and loads them into the sampler."""

    def __init__(
        self,
        sampler: WeightLoader,
        style: StyleConfig,
        receiver: WeightReceiver,
        *,
        timeout_seconds: float,
        check: StopCheck,
        warmup_steps: int = 0,
    ) -> None:
        """The sampler holds the initial model, version 0. `check` is called during waits, and may raise.
        Rollouts start after `warmup_steps` steps."""
        self._sampler = sampler
        self._style = style
        self._receiver = receiver
        self._timeout_seconds = timeout_seconds
        self._check = check
        self._warmup_steps = warmup_steps
        self.version: int | None = 0
        """The sampler's version; None after an interrupted load, when it has tensors of two versions."""
        self.load_seconds = 0.0
        """Duration of the last load."""

    def before_step(self, step: int) -> int:
        """Load the version that samples a step; returns it."""
        if requests_weights(self._style, step, self._warmup_steps):
            self._request_weights(step, self._check)
        return self.load_newest(version_window(self._style, step, self._warmup_steps))

    def before_batch(
        self, step: int, groups_ahead: Callable[[], int], groups_per_step: int, *, check: StopCheck
    ) -> int:
        """Load the version that samples the next group; returns it. For a trainer that takes
        `groups_per_step` groups in order of arrival, `groups_ahead()` of them before this one.

        `check` is called during the wait, and may change what `groups_ahead` returns.
        """
        if requests_weights(self._style, step, self._warmup_steps):
            self._request_weights(step, check)
        return self._load_newest(lambda: self._window_after(groups_ahead(), groups_per_step), check)

    def lowest_version(self, groups_ahead: int, groups_per_step: int) -> int:
        """Lowest version that may have sampled a group that the trainer takes after `groups_ahead` others."""
        return self._window_after(groups_ahead, groups_per_step).lowest

    def _window_after(self, groups_ahead: int, groups_per_step: int) -> VersionWindow:
        shortfall = self._receiver.get_signal(GROUP_SHORTFALL)
        step = training_step_for(groups_ahead, shortfall, groups_per_step, self._warmup_steps)
        return version_window(self._style, step, self._warmup_steps)

    def after_step(self, step: int) -> None:
        """Record that a step will not be sampled again: under `fixed` the trainer may delete versions."""
        if isinstance(self._style, FixedStyleConfig):
            window = version_window(self._style, step + 1, self._warmup_steps)
            self._receiver.set_signal(OLDEST_NEEDED, window.lowest)

    def trainer_has_finished(self, last_step: int) -> bool:
        """Whether the trainer has done all steps up to `last_step`, and needs no more experiences."""
        return self._receiver.final_version() >= last_step

    def load_final(self, last_step: int) -> int:
        """Load the trainer's final weights: version `last_step`, or the one with which it ended earlier."""
        wait = TimedWait(self._timeout_seconds, self._check)
        while (ended := self._receiver.final_version()) == 0 and last_step not in self._receiver.versions():
            self._sleep(wait, f"version {last_step} of the weights")
        return self.load_newest(VersionWindow(ended or last_step, ended or last_step))

    def load_newest(self, window: VersionWindow) -> int:
        """Wait for a version in the window, and load the newest; returns it.

        Raises `CheckpointError` after the timeout, and for weights of another model.
        """
        return self._load_newest(lambda: window, self._check)

    def _load_newest(self, window: Callable[[], VersionWindow], check: StopCheck) -> int:
        wait = TimedWait(self._timeout_seconds, check)
        while True:
            found = self._wait_for_version(window, wait)
            self._receiver.set_signal(OLDEST_NEEDED, found)  # before the read, so that it is not deleted
            try:
                self._load(found)
            except VersionGone:
                self._sleep(wait, f"a complete transfer of version {found} of the weights")
                continue
            return found

    def _wait_for_version(self, window: Callable[[], VersionWindow], wait: TimedWait) -> int:
        while True:
            own = [] if self.version is None else [self.version]
            current = window()
            found = current.select_newest([*own, *self._receiver.versions()])
            if found is not None:
                return found
            self._sleep(wait, f"version {current.lowest} of the weights")

    def _load(self, version: int) -> None:
        started = time.perf_counter()
        if version != self.version:
            self.version = None
            try:
                self._transfer(version)
            except WeightTransferError as error:
                log.warning("%s. The explorer gets the weights again when the trainer has them.", error)
                raise VersionGone from error
            except ModelError as error:
                raise CheckpointError(
                    f"Version {version} of the weights {self._receiver.location} belongs to another model "
                    f"than the explorer's: {error}. Write the same `model` for explorer and trainer, and let "
                    "no other run use the same folder."
                ) from error
            self.version = version
        self.load_seconds = time.perf_counter() - started

    def _transfer(self, version: int) -> None:
        """Have the sampler receive a version itself if it can, or pass the tensors to it."""
        published = self._receiver.published(version) if self._sampler.joins_process_groups else None
        if published is not None:
            self._sampler.load_published(published, version)
        else:
            self._sampler.load(self._receiver.read(version), version)

    def _request_weights(self, step: int, check: StopCheck) -> None:
        self._receiver.set_signal(REQUESTED, step)
        wait = TimedWait(self._timeout_seconds, check)
        while self._receiver.get_signal(SERVED) < step and not self._receiver.final_version():
            self._sleep(wait, "the new weights that it requested")

    def _sleep(self, wait: TimedWait, awaited: str) -> None:
        if wait.remaining_seconds <= 0:
            published = ", ".join(map(str, self._receiver.versions())) or "none"
            raise CheckpointError(
                f"The explorer has waited {wait.timeout_seconds:g} s for {awaited}, "
                f"{self._receiver.location}; published versions: {published}. Check that the trainer runs "
                "and belongs to this run. If its steps take that long, write a larger "
                "`synchronizer.timeout_seconds`."
            )
        wait.sleep(f"{awaited}, from the trainer", _POLL_SECONDS)
