"""Publishers, which pass new weights to the sampler: in this process, or in a separate explorer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from strop.protocols import InferenceEngine
from strop.run.state.run_state import RunState
from strop.sync.local import LocalSynchronizer
from strop.sync.publish import Publisher


class WeightPublisher(Protocol):
    """Receives the weights after each step."""

    def start(self, state: RunState) -> None:
        """Called before the first step, with the state that the run starts from."""
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


class ColocatedPublisher:
    """Publishes each step's weights to the inference engine of this process, or of processes that it started."""

    def __init__(self, synchronizer: LocalSynchronizer, released: InferenceEngine | None = None) -> None:
        """`released` is the engine if its memory is to be free during the updates of each step."""
        self._synchronizer = synchronizer
        self._released = released

    def start(self, state: RunState) -> None:
        """Nothing: the engine has the initial weights."""

    def begin_update(self) -> None:
        """Release the engine's memory."""
        if self._released is not None:
            self._released.release_memory()

    def publish(self, step: int) -> Mapping[str, float]:
        """Restore the engine's memory, and publish the weights of step `step`."""
        if self._released is not None:
            self._released.restore_memory()
        return self._synchronizer.publish(step)

    def finish(self) -> None:
        """Nothing."""


class RemotePublisher:
    """Publishes weights to a separate explorer process, when the synchronizer's style asks for it."""

    def __init__(self, publisher: Publisher, steps: int) -> None:
        """`steps` is the run's total number of steps."""
        self._publisher = publisher
        self._steps = steps

    def start(self, state: RunState) -> None:
        """Tell the explorer where the trainer stands, and publish the restored weights where that is due."""
        self._publisher.report_shortfall(state.group_offset)
        self._publisher.announce_start()
        self._publisher.after_step(state.step, self._steps)

    def begin_update(self) -> None:
        """Nothing: the explorer continues to sample."""

    def publish(self, step: int) -> Mapping[str, float]:
        """Publish the weights of step `step`, where the style asks for it."""
        self._publisher.after_step(step, self._steps)
        return {}

    def finish(self) -> None:
        """Publish the final weights, and tell the explorer that the trainer has ended."""
        self._publisher.finish()
