"""Checks of a distillation's teachers against the run: their vocabularies, and the tasks that each one teaches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from strop.config.schema.distillation import DistillationConfig
from strop.errors import DataError
from strop.run.optimize.vocabularies import check_same_ids

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def check_vocabularies(section: DistillationConfig, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise ModelError for a teacher without a tokenizer, or whose tokenizer gives a policy's token another id."""
    for number, teacher in enumerate(section.teachers):
        check_same_ids(f"algorithm.distillation.teachers.{number}", teacher.model, tokenizer)


def require_teachers(section: DistillationConfig, sources: Iterable[str]) -> None:
    """Raise DataError for tasks of a data source that no teacher has."""
    for source in sorted(set(sources)):
        if section.teacher_of(source) is None:
            listed = sorted(name for teacher in section.teachers for name in teacher.sources or ())
            raise DataError(
                f"algorithm.distillation.teachers: no teacher has the data source {source!r}, which some "
                f"training tasks have; the teachers list {', '.join(listed)}. Add it to the `sources` of a "
                "teacher, or remove the `sources` of one, which then teaches all other tasks."
            )
