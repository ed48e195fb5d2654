"""`stages`: a sequence of runs, each of which starts from the model of the previous one."""

from __future__ import annotations

from typing import Any

from strop.config.names import FileName
from strop.config.schema.base import Section

SectionOverride = dict[str, Any] | str | None


class StageConfig(Section):
    """One run of a sequence. Its sections override the rest of the file key by key; null removes a
    section."""

    name: FileName
    """Name of the stage, unique in the file; the stage's run is named `<name>-<stage>`, and its folder is
    `<folder>/<stage>` if the file has a `folder`."""
    mode: str | None = None
    """Override of `mode`."""
    seed: int | None = None
    """Override of `seed`."""
    model: SectionOverride = None
    """Override of `model`; without a `path` the stage starts with the model of the previous stage."""
    data: SectionOverride = None
    """Override of `data`."""
    reward: SectionOverride = None
    """Override of `reward`."""
    algorithm: SectionOverride = None
    """Override of `algorithm`; a different `type` replaces the section, here and in all sections below."""
    rollout: SectionOverride = None
    """Override of `rollout`."""
    synchronizer: SectionOverride = None
    """Override of `synchronizer`."""
    buffer: SectionOverride = None
    """Override of `buffer`."""
    trainer: SectionOverride = None
    """Override of `trainer`."""
    checkpoint: SectionOverride = None
    """Override of `checkpoint`."""
    evaluate: SectionOverride = None
    """Override of `evaluate`."""
    record: SectionOverride = None
    """Override of `record`."""
    bench: SectionOverride = None
    """Override of `bench`."""
