"""Release of an engine's memory during the updates of a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from strop.run.drivers.train_loop import ColocatedPublisher


@dataclass
class Recording:
    """Stands for the engine and for the synchronizer that loads into it."""

    calls: list[str] = field(default_factory=list)

    def release_memory(self) -> None:
        self.calls.append("release")

    def restore_memory(self) -> None:
        self.calls.append("restore")

    def publish(self, version: int) -> Mapping[str, float]:
        self.calls.append(f"load {version}")
        return {}


def test_memory_is_released_before_the_updates_and_restored_before_the_load() -> None:
    both = Recording()
    publisher = ColocatedPublisher(both, both)
    for step in (1, 2):
        publisher.begin_update()
        publisher.publish(step)
    assert both.calls == ["release", "restore", "load 1", "release", "restore", "load 2"]


def test_an_engine_that_keeps_its_memory_is_left_alone() -> None:
    both = Recording()
    publisher = ColocatedPublisher(both)
    publisher.begin_update()
    publisher.publish(1)
    assert both.calls == ["load 1"]
