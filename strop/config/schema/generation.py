"""Schema of `generate`: responses to a file of prompts, without training."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from strop.config.schema.base import Section
from strop.config.schema.data import DataConfig
from strop.config.schema.model import ModelConfig
from strop.config.schema.rollout import NativeEngineConfig, SamplingConfig


class GenerationConfig(Section):
    """Prompts, model, sampling and output file of a generation."""

    model: ModelConfig
    """Model that generates the responses."""
    data: DataConfig
    """Prompts (`train`), and the maximum lengths of prompts and responses."""
    output: str
    """Parquet file to write, a path or a URL: the rows of the prompts with a column `responses`."""
    rollouts_per_task: int = Field(default=1, gt=0)
    """Responses per prompt."""
    tasks_per_batch: int = Field(default=128, gt=0)
    """Prompts per batch; it changes memory, never the responses."""
    sampling: SamplingConfig = SamplingConfig()
    """Sampling of the responses."""
    engine: NativeEngineConfig = NativeEngineConfig()
    """Inference engine."""
    seed: int = Field(default=1, ge=0)
    """Seed of the sampling."""

    def faults(self) -> Iterator[str]:
        """Faults between the fields."""
        if self.sampling.temperature == 0 and self.rollouts_per_task > 1:
            yield (
                f"rollouts_per_task is {self.rollouts_per_task} and the temperature is 0: greedy responses "
                "to one "
                "prompt are identical; write rollouts_per_task 1, or a temperature above 0"
            )
