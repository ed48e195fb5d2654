"""Publishing of the trainer's weights after each step: to a separate explorer, over any transport and waiting for
nothing, or to this process's sampler."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
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


class Publisher(Protocol):
    """Receives the weights after each step."""

    def start(self, step: int, group_offset: int) -> None:
        """Called before the first step, with the step and the `RunState.group_offset` that the run starts from."""
        ...

    def begin_update(self) -> None:
        """Called before the updates of each step; nothing samples in this process until `publish`."""
        ...

    def publish(self, step: int) -> Mapping[str, float]:
        """Publish the weights after step `step`, where that is due; returns metrics."""
        ...

    def finish(self) -> None:
        """Called after the last step; not after an error or a stop."""
        ...


class RemotePublisher:
    """Publishes versions to a separate explorer process when the synchronizer's style or the explorer asks for them."""

    def __init__(
        self,
        source: WeightSource,
        style: StyleConfig,
        sender: WeightSender,
        *,
        last_step: int,
        warmup_steps: int = 0,
        pinned_version: int | None = None,
    ) -> None:
        """The run ends after `last_step`; rollouts start after `warmup_steps` steps.

        `pinned_version` is the version with which a killed explorer would sample its step again: the trainer
        publishes it in any case when it reaches that step, perhaps for the second time.
        """
        self._source = source
        self._style = style
        self._sender = sender
        self._last_step = last_step
        self._warmup_steps = warmup_steps
        self._pinned_version = pinned_version
        self._version = 0
        self._published: int | None = None

    def start(self, step: int, group_offset: int) -> None:
        """Tell the explorer where the trainer stands, whatever an earlier trainer announced about its end, and publish
        the restored weights where that is due."""
        self.report_shortfall(group_offset)
        self._sender.announce_start()
        self.publish(step)

    def begin_update(self) -> None:
        """Nothing: the explorer continues to sample."""

    def publish(self, step: int) -> Mapping[str, float]:
        """Publish the weights of step `step`, if the style requires it or the explorer has requested new ones."""
        self._version = step
        if step > 0 and (
            publishes_after(self._style, step, self._last_step, self._warmup_steps)
            or step == self._pinned_version
        ):
            self._write()
        if step > 0:
            self.serve_request()
        return {}

    def serve_request(self) -> None:
        """Publish the weights if the explorer has requested new ones; to be called between updates only."""
        requested = self._sender.get_signal(REQUESTED)
        if requested > self._sender.get_signal(SERVED):
            self._write()
            self._sender.set_signal(SERVED, requested)

    def report_shortfall(self, groups: int) -> None:
        """Set `GROUP_SHORTFALL`."""
        self._sender.set_signal(GROUP_SHORTFALL, groups)

    def snapshot(self) -> EngineSnapshot | None:
        """The versions that a checkpoint of the current step must hold so that the explorer can continue."""
        return self._sender.snapshot(self._version)

    def finish(self) -> None:
        """Publish the current weights as the final version; the explorer may still be running."""
        self._write()
        self._sender.finish(self._version)

    def _write(self) -> None:
        """Write the current version, and delete those that the explorer needs no more."""
        if self._version != self._published:
            self._sender.write(self._version, self._source.iter_weights())
            versions = self._sender.versions()
            oldest_needed = max(self._sender.get_signal(OLDEST_NEEDED), self._pinned_version or 0)
            retained = retained_versions(self._style, versions, oldest_needed)
            self._sender.delete([version for version in versions if version not in retained])
            self._published = self._version


class ColocatedPublisher:
    """Loads each step's weights into a sampler of this process, or of processes that it started."""

    def __init__(
        self,
        load: Callable[[int], None],
        check_load: Callable[[int], Mapping[str, float]] = lambda version: {},
        *,
        releases: InferenceEngine | None = None,
    ) -> None:
        """
        Args:
            load: loads the trainer's current weights into the sampler, as the version that it is called with.
            check_load: called with the version after each load; returns metrics and may raise.
            releases: the sampler, if its memory is to be free during the updates of each step.
        """
        self.load = load
        self.check_load = check_load
        self._releases = releases
        self._is_released = False

    def start(self, step: int, group_offset: int) -> None:
        """Nothing: the sampler has the initial weights."""

    def begin_update(self) -> None:
        """Release the sampler's memory."""
        if self._releases is not None:
            self._releases.release_memory()
            self._is_released = True

    def publish(self, step: int) -> Mapping[str, float]:
        """Restore the sampler's memory, and load the weights of step `step`; returns the metrics of the load."""
        if self._releases is not None and self._is_released:
            self._releases.restore_memory()
            self._is_released = False
        self.load(step)
        return self.check_load(step)

    def finish(self) -> None:
        """Nothing."""


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
