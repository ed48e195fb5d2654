"""Release of a sampler's memory during the updates of a step."""

from __future__ import annotations

from dataclasses import dataclass, field

from strop.sync.publish import ColocatedPublisher


@dataclass
class Recording:
    """Stands for the sampler and its load of weights."""

    calls: list[str] = field(default_factory=list)

    def release_memory(self) -> None:
        self.calls.append("release")

    def restore_memory(self) -> None:
        self.calls.append("restore")

    def load(self, version: int) -> None:
        self.calls.append(f"load {version}")


def test_memory_is_released_before_the_updates_and_restored_before_the_load() -> None:
    sampler = Recording()
    publisher = ColocatedPublisher(sampler.load, releases=sampler)  # type: ignore[arg-type]
    publisher.publish(0)
    for step in (1, 2):
        publisher.begin_update()
        publisher.publish(step)
    assert sampler.calls == ["load 0", "release", "restore", "load 1", "release", "restore", "load 2"]


def test_a_sampler_that_keeps_its_memory_is_left_alone() -> None:
    sampler = Recording()
    publisher = ColocatedPublisher(sampler.load)
    publisher.begin_update()
    publisher.publish(1)
    assert sampler.calls == ["load 1"]
