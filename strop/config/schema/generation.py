"""Answers to a file of prompts, by a model that is not trained."""

from __future__ import annotations

from pydantic import Field, model_validator

from strop.config.schema.base import Section
from strop.config.schema.data import Data
from strop.config.schema.model import Model
from strop.config.schema.rollout import NativeEngine, Sampling


class Generation(Section):
    """Which prompts are answered, by what, how, and where the answers go."""

    model: Model
    """What answers."""
    data: Data
    """The prompts, in `train`, and how long they and their answers may be."""
    output: str
    """Parquet to write, a path or a URL: the same rows with a column `responses`."""
    rollouts_per_task: int = Field(1, gt=0)
    """Answers to each prompt."""
    tasks_at_once: int = Field(128, gt=0)
    """Prompts that are answered together; changes memory, never the answers."""
    sampling: Sampling = Sampling()
    """How answers are drawn."""
    engine: NativeEngine = NativeEngine()
    """What draws them."""
    seed: int = Field(1, ge=0)
    """Fixes every draw."""

    @model_validator(mode="after")
    def _greedy_once(self) -> Generation:
        if self.sampling.temperature == 0 and self.rollouts_per_task > 1:
            raise ValueError(
                f"rollouts_per_task is {self.rollouts_per_task} and the temperature 0: greedy answers to one "
                "prompt are all the same; write 1, or a temperature above 0"
            )
        return self
