"""`checkpoint` and `export`: saving of checkpoints, resuming from them, and exported models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from strop.config.schema.base import Section
from strop.config.units import Interval

SaveConcurrency = Literal["thread", "process", "node", "all"]


class BestCheckpointConfig(Section):
    """Choice of the best checkpoint by an evaluation metric. The evaluation before the first step does not
    count."""

    metric: str | None = None
    """Evaluation metric, such as `eval/gsm8k/reward`; the first eval taskset's reward if omitted."""
    mode: Literal["max", "min"] = "max"
    """Direction of improvement: `max` for a metric that should increase, `min` for one that should
    decrease."""


class CheckpointConfig(Section):
    """Saving of checkpoints. The last step always has a checkpoint."""

    every: Interval = None
    """Interval of checkpoints; `never` saves only the last step."""
    keep: int | None = Field(3, gt=0)
    """Number of latest checkpoints to keep; older ones are deleted. Null keeps all."""
    best: BestCheckpointConfig | None = None
    """Choice of the best checkpoint as the run's final model; null for the last step. With it each evaluation
    saves a checkpoint, and `keep` never deletes the best one (with `keep: 1`, the best and the last
    remain)."""
    save_optimizer: bool = True
    """Save the optimizer's state; without it a run cannot be resumed exactly."""
    resume_optimizer: bool = True
    """Restore the optimizer's state on resume; otherwise the optimizer starts with an empty state."""
    mirror: str | None = None
    """Second location of the checkpoints, a path or an fsspec URL; a run with an empty folder resumes from
    it. A remote store that refuses is asked again for about a minute. Null for none."""
    async_save: bool = False
    """Write checkpoints in the background while training continues, from a copy of the state in memory."""
    save_concurrency: SaveConcurrency = "all"
    """Writers of a checkpoint that may run at the same time: one `thread` of the run, the threads of one
    `process` (several ranks take turns), the processes of one `node`, or `all`."""
    export: bool = False
    """Write a Hugging Face model folder, `model`, into each checkpoint. The end of a run always writes
    one."""

    def faults(self) -> Iterator[str]:
        """Faults between the fields."""
        if self.async_save and self.export:
            yield (
                "export writes the weights in memory, which training changes during an async_save; write "
                "export: false or async_save: false (`strop export` exports any checkpoint later)"
            )


class ExportConfig(Section):
    """Hugging Face folders that a run writes: `model` at its end, those of `checkpoint.export`, and those of
    `strop export`."""

    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """Data type of the weights. If omitted, that of the trained parameters; with an adapter that of the base model's
    files, whose weights are read again if the run holds them in a shorter type (`model.compute_dtype`). The adapter
    in the folder `adapter` of a merged model keeps its own."""
