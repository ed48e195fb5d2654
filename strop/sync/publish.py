"""Publishing of the trainer's weights, and their subscription by the explorer, over any transport.

LocalSynchronizer  loads the weights within one process: the tensors, or a LoRA adapter alone.
Publisher          consumes the trainer's weights; waits for nothing; is never blocked.
Subscriber         consumes published versions; waits for a version that may sample its step; is unblocked
                   by the publisher or by the timeout.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

import torch

from strop.config.schema.synchronizer import FixedStyleConfig, StyleConfig
from strop.errors import CheckpointError, ModelError, WeightTransferError
from strop.protocols import EngineSnapshot, InferenceEngine, TrainingEngine
from strop.sync.staleness_policy import (
    VersionWindow,
    publishes_after,
    requests_weights,
    retained_versions,
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
    WeightSender,
)
from strop.workers.waiting import StopCheck, TimedWait

log = logging.getLogger("strop.sync")
_POLL_SECONDS = 0.05


class LocalSynchronizer:
    """Passes the trainer's weights to a sampler of this process, or of processes that it started."""

    def __init__(
        self,
        load: Callable[[int], None],
        check_load: Callable[[int], Mapping[str, float]] = lambda version: {},
    ) -> None:
        """
        Args:
            load: loads the trainer's current weights into the sampler, as the version that it is called with.
            check_load: called with the version after each load; returns metrics and may raise.
        """
        self._load = load
        self._check_load = check_load

    def publish(self, version: int) -> Mapping[str, float]:
        """Load the trainer's current weights into the sampler, as this version; returns the metrics of the load."""
        self._load(version)
        return self._check_load(version)


@dataclass(frozen=True, slots=True)
class TensorLoad:
    """Loads the trainer's tensors into the sampler, which copies those that it does not share."""

    trainer: TrainingEngine
    explorer: InferenceEngine

    def __call__(self, version: int) -> None:
        """Load the current weights as this version."""
        self.explorer.load(self.trainer.iter_weights(), version)


@dataclass(frozen=True, slots=True)
class InPlaceLoad:
    """Tells a sampler that reads the trainer's tensors and adapter in place that they have changed."""

    explorer: InferenceEngine

    def __call__(self, version: int) -> None:
        """Give the current weights this version."""
        self.explorer.load((), version)


class AdapterLoad:
    """Loads the trainer's LoRA adapter into the sampler, which has the base weights, through a temporary folder."""

    def __init__(self, trainer: TrainingEngine, explorer: InferenceEngine) -> None:
        self._trainer = trainer
        self._explorer = explorer
        self._folder: TemporaryDirectory[str] | None = None
        """Folder of the last version, which an engine reads again after a restart."""

    def __call__(self, version: int) -> None:
        """Load the current adapter as this version."""
        folder = TemporaryDirectory(prefix="strop-adapter-")
        self._trainer.write_adapter(Path(folder.name))
        self._explorer.load_adapter(Path(folder.name), version)
        old, self._folder = self._folder, folder
        if old is not None:
            old.cleanup()


class WeightSource(Protocol):
    """The part of a training engine that the publisher uses."""

    def iter_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Full weights, adapters merged, with Hugging Face names; to be iterated to the end."""
        ...


class Publisher:
    """The trainer's side: publishes versions when the policy or the explorer asks for them."""

    def __init__(
        self,
        source: WeightSource,
        policy: StyleConfig,
        sender: WeightSender,
        *,
        warmup_steps: int = 0,
        pinned_version: int | None = None,
    ) -> None:
        """Rollouts start after `warmup_steps` steps.

        `pinned_version` is the version with which a killed explorer would sample its step again: the trainer
        publishes it in any case when it reaches that step, perhaps for the second time.
        """
        self._source = source
        self._policy = policy
        self._sender = sender
        self._warmup_steps = warmup_steps
        self._pinned_version = pinned_version
        self._version = 0
        self._published: int | None = None

    def after_step(self, step: int, last_step: int) -> None:
        """Publish the weights after a step, if the policy requires it or the explorer has requested new ones. Also
        called at the start, with the step that the trainer resumes from."""
        self._version = step
        if step > 0 and (
            publishes_after(self._policy, step, last_step, self._warmup_steps) or step == self._pinned_version
        ):
            self._publish()
        if step > 0:
            self.serve_request()

    def serve_request(self) -> None:
        """Publish the weights if the explorer has requested new ones; to be called between updates only."""
        requested = self._sender.get_signal(REQUESTED)
        if requested > self._sender.get_signal(SERVED):
            self._publish()
            self._sender.set_signal(SERVED, requested)

    def report_shortfall(self, groups: int) -> None:
        """Set `GROUP_SHORTFALL`."""
        self._sender.set_signal(GROUP_SHORTFALL, groups)

    def snapshot(self) -> EngineSnapshot | None:
        """The versions that a checkpoint of the current step must hold so that the explorer can continue."""
        return self._sender.snapshot(self._version)

    def announce_start(self) -> None:
        """Announce that the trainer runs, whatever an earlier trainer announced about its end."""
        self._sender.announce_start()

    def finish(self) -> None:
        """Publish the current weights as the final version; the explorer may still be running."""
        self._publish()
        self._sender.finish(self._version)

    def _publish(self) -> None:
        """Publish the current version, and delete those that the explorer needs no more."""
        if self._version != self._published:
            self._sender.write(self._version, self._source.iter_weights())
            versions = self._sender.versions()
            oldest_needed = max(self._sender.get_signal(OLDEST_NEEDED), self._pinned_version or 0)
            retained = retained_versions(self._policy, versions, oldest_needed)
            self._sender.delete([version for version in versions if version not in retained])
            self._published = self._version


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
        policy: StyleConfig,
        receiver: WeightReceiver,
        *,
        timeout_seconds: float,
        check: StopCheck,
        warmup_steps: int = 0,
    ) -> None:
        """The sampler holds the initial model, version 0. `check` is called during waits, and may raise.
        Rollouts start after `warmup_steps` steps."""
        self._sampler = sampler
        self._policy = policy
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
        if requests_weights(self._policy, step, self._warmup_steps):
            self._request_weights(step, self._check)
        return self.load_newest(version_window(self._policy, step, self._warmup_steps))

    def before_batch(
        self, step: int, groups_ahead: Callable[[], int], groups_per_step: int, *, check: StopCheck
    ) -> int:
        """Load the version that samples the next group; returns it. For a trainer that takes
        `groups_per_step` groups in order of arrival, `groups_ahead()` of them before this one.

        `check` is called during the wait, and may change what `groups_ahead` returns.
        """
        if requests_weights(self._policy, step, self._warmup_steps):
            self._request_weights(step, check)
        return self._load_newest(lambda: self._window_after(groups_ahead(), groups_per_step), check)

    def lowest_version(self, groups_ahead: int, groups_per_step: int) -> int:
        """Lowest version that may have sampled a group that the trainer takes after `groups_ahead` others."""
        return self._window_after(groups_ahead, groups_per_step).lowest

    def _window_after(self, groups_ahead: int, groups_per_step: int) -> VersionWindow:
        shortfall = self._receiver.get_signal(GROUP_SHORTFALL)
        step = training_step_for(groups_ahead, shortfall, groups_per_step, self._warmup_steps)
        return version_window(self._policy, step, self._warmup_steps)

    def after_step(self, step: int) -> None:
        """Record that a step will not be sampled again: under `fixed` the trainer may delete versions."""
        if isinstance(self._policy, FixedStyleConfig):
            window = version_window(self._policy, step + 1, self._warmup_steps)
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
                f"The explorer has waited {wait.elapsed_seconds:.0f} s for {awaited}, "
                f"{self._receiver.location}; published versions: {published}. Check that the trainer runs "
                "and belongs to this run. If its steps take that long, write a larger "
                "`synchronizer.timeout_seconds`."
            )
        wait.sleep(f"{awaited}, from the trainer", _POLL_SECONDS)
