"""Rows of SFT and DPO as text, for the report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from strop.runs.training_examples import TrainingExample, TrainingText
from strop.types import Experience, ExperienceGroup

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_LABELS = {"sft": "demonstration"}


def training_examples(
    groups: Sequence[ExperienceGroup], tokenizer: PreTrainedTokenizerBase
) -> tuple[TrainingExample, ...]:
    """Decode prompts, each with the sequences that follow it, from their first trained token on: a demonstration has
    its own prompt, and a pair has one."""

    def text_of(experience: Experience) -> TrainingText:
        text = tokenizer.decode(experience.token_ids[experience.prompt_tokens :].tolist())
        label = _LABELS.get(experience.role, experience.role)
        return TrainingText(label, str(text), int(experience.loss_mask.sum()))

    def prompt_of(experience: Experience) -> str:
        return str(tokenizer.decode(experience.token_ids[: experience.prompt_tokens].tolist()))

    return tuple(
        TrainingExample(prompt_of(same[0]), tuple(map(text_of, same)))
        for group in groups
        for same in ([group.experiences] if group.experiences[0].pair else [(e,) for e in group.experiences])
    )
