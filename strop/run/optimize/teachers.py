"""Checks of a distillation's teachers against the run: their vocabularies, and the tasks that each one teaches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from strop.config.schema.distillation import DistillationConfig, TeacherConfig
from strop.errors import DataError, ModelError
from strop.models.loading import load_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def check_vocabularies(section: DistillationConfig, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise ModelError for a teacher without a tokenizer, or whose tokenizer gives a policy's token another id."""
    for number, teacher in enumerate(section.teachers):
        try:
            _check_vocabulary(teacher, tokenizer)
        except ModelError as error:
            raise ModelError(f"algorithm.distillation.teachers.{number}: {error}") from error


def _check_vocabulary(teacher: TeacherConfig, tokenizer: PreTrainedTokenizerBase) -> None:
    own, policy = load_tokenizer(teacher.model).get_vocab(), tokenizer.get_vocab()
    different = [token for token, number in policy.items() if own.get(token) != number]
    if not different:
        return
    found = own.get(different[0])
    raise ModelError(
        f"the teacher reads the policy's tokens, but {len(different)} of the policy's {len(policy)} tokens are "
        f"not in the vocabulary of {teacher.tokenizer or teacher.path} under the same id: {different[0]!r} is "
        f"{policy[different[0]]} in the policy's and {'missing' if found is None else found} there. Name a "
        "teacher of the policy's family. If the tokens are the same and only the tokenizer's files differ, set "
        "the teacher's `tokenizer` to the policy's folder."
    )


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
