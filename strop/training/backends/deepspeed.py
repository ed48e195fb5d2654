"""The DeepSpeed backend: the engines of several ranks, which divide the model's training state by ZeRO."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from strop.config.deepspeed import read_config, resolved, zero_settings
from strop.config.schema import Run
from strop.config.schema.trainer import DeepSpeedEngineConfig
from strop.errors import PlacementError
from strop.training.backends.fsdp2 import Fsdp2Backend
from strop.training.device import find_rank_device_type
from strop.training.ranks.group import RankGroup
from strop.training.zero.library import import_deepspeed
from strop.workers.cleanup import closing
from strop.workers.start import LOCAL, RankPlacement


@contextmanager
def open_deepspeed(run: Run, placement: RankPlacement = LOCAL) -> Iterator[Fsdp2Backend]:
    """The backend of `trainer.engine.type: deepspeed`; at the end of the context its ranks end.

    Ranks other than the first start at `placement`. Raises MissingExtraError without DeepSpeed, and PlacementError
    for devices that do not exist.
    """
    section = run.trainer.engine
    assert isinstance(section, DeepSpeedEngineConfig)
    device = find_rank_device_type(section.device, section.ranks, placement)
    if device == "cpu" and run.model.compute_dtype == "float16":
        raise PlacementError(
            "model.compute_dtype is float16, which DeepSpeed computes on GPUs only. Write bfloat16 or float32."
        )
    import_deepspeed(device)
    section = resolved(section)  # other nodes do not have its file
    run = run.model_copy(update={"trainer": run.trainer.model_copy(update={"engine": section})})
    group = RankGroup.of(section, device, placement)
    with closing(group):
        yield Fsdp2Backend(run, group, describe_division(section, device))


def describe_division(section: DeepSpeedEngineConfig, device: str) -> str:
    """Division of a model over the ranks, for the run's description."""
    settings = zero_settings(section, read_config(section))
    offloads = {"optimizer": settings.offload_optimizer, "parameters": settings.offload_parameters}
    offloaded = " and ".join(name for name, is_on in offloads.items() if is_on)
    kind = "processes" if device == "cpu" else "GPUs"
    tokens = f", tokens divided over {section.sequence_parallel}" if section.sequence_parallel > 1 else ""
    return (
        f"divided over {section.ranks} {kind} (DeepSpeed ZeRO-{settings.stage}"
        f"{f', {offloaded} in CPU memory' if offloaded else ''}{tokens})"
    )
