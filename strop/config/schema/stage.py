"""`stages`: runs one after the other, each from the model of the one before."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from strop.config.schema.base import Section

Part = dict[str, Any] | str | None


class Stage(Section):
    """One run of several: what it says goes over the rest of the file, key by key; null takes a part away."""

    name: str = Field(pattern=r"^[^/\\.][^/\\]*$")
    """Unique; the stage's run is `<name>-<stage>`, or `<folder>/<stage>`."""
    mode: str | None = None
    """The stage's own, over the file's `mode`; and so on for all below."""
    seed: int | None = None
    """Over `seed`."""
    model: Part = None
    """Over `model`; without a `path` the stage begins with the model of the one before."""
    data: Part = None
    """Over `data`."""
    reward: Part = None
    """Over `reward`."""
    algorithm: Part = None
    """Over `algorithm`; another `type` takes the whole section's place, here and in all below."""
    rollout: Part = None
    """Over `rollout`."""
    synchronizer: Part = None
    """Over `synchronizer`."""
    buffer: Part = None
    """Over `buffer`."""
    trainer: Part = None
    """Over `trainer`."""
    checkpoint: Part = None
    """Over `checkpoint`."""
    evaluate: Part = None
    """Over `evaluate`."""
    record: Part = None
    """Over `record`."""
    bench: Part = None
    """Over `bench`."""
