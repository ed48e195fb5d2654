"""Services of a run for experience operators, and the text of a task's prompt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from strop.config.schema.task_pipeline import ReplyConfig
from strop.data.images.messages import content_text
from strop.types import Task


class ReplySampler(Protocol):
    """Samples replies with the run's inference engine."""

    def __call__(
        self, prompts: Sequence[str], section: ReplyConfig, seeds: Sequence[int]
    ) -> list[str | None]:
        """The reply to each prompt, with the weights that sampled last; None for a prompt that is too long."""


@dataclass(frozen=True, slots=True)
class ExperienceServices:
    """Services of a run for experience operators."""

    replies: Path
    """Folder for the cached replies of language models."""
    annotations: Path
    """Folder of the queue of questions to people."""
    check: Callable[[], None]
    """Raises `Interrupted` if a stop was requested."""
    sample_replies: ReplySampler


def prompt_text(task: Task) -> str:
    """The text of a task's messages."""
    return "\n".join(str(content_text(message["content"])) for message in task.messages)
