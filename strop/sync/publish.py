"""Publishing of the trainer's weights: over any transport, waiting for nothing, or to this process's sampler."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

import torch

from strop.config.schema.buffer import StyleConfig
from strop.protocols import EngineSnapshot, InferenceEngine, TrainingEngine
from strop.sync.staleness_policy import publishes_after, retained_versions
from strop.sync.transport import GROUP_SHORTFALL, OLDEST_NEEDED, REQUESTED, SERVED, WeightSender


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
        self.load = load
        self.check_load = check_load

    def publish(self, version: int) -> Mapping[str, float]:
        """Load the trainer's current weights into the sampler, as this version; returns the metrics of the load."""
        self.load(version)
        return self.check_load(version)


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
