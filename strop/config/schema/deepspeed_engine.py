"""`trainer.engine` of type `deepspeed`: several processes with DeepSpeed's ZeRO."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field

from strop.config.schema.base import Section
from strop.config.schema.rank_network import RankNetworkConfig
from strop.config.units import MAX_SECONDS


class DeepSpeedEngineConfig(Section):
    """Several processes (ranks) that divide the training state of the model between them (DeepSpeed's ZeRO, arXiv
    1910.02054)."""

    type: Literal["deepspeed"] = "deepspeed"
    ranks: int = Field(2, gt=0)
    """Number of processes, including the run's own; on GPUs each process has its own GPU."""
    sequence_parallel: int = Field(1, gt=0)
    """Number of ranks that divide the tokens of a micro-batch (Ulysses): activations of one rank shrink by that factor.
    `microbatch` counts the tokens of all of them; the model's attention heads must be a multiple."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of the ranks; `auto` is one GPU per rank if there are GPUs, otherwise the CPU."""
    zero_stage: Literal[1, 2, 3] | None = None
    """State of which each rank holds a part: 1 is the optimizer's, 2 also gradients, 3 also parameters. Null is the
    stage of `config`, or 3 without `config`."""
    offload_optimizer: bool | None = None
    """Keep the optimizer's state and its update in the CPU's memory. Null is the setting of `config`, or false."""
    offload_parameters: bool | None = None
    """Keep parameters of stage 3 in the CPU's memory between their uses. Null is the setting of `config`, or false."""
    config: str | dict[str, Any] | None = None
    """DeepSpeed configuration: a JSON file, or its sections. `auto` values come from the run file, and other values
    must agree with it."""
    hang_timeout_seconds: float = Field(600.0, gt=0, le=MAX_SECONDS)
    """Maximum time, in seconds, for which the other ranks wait for a rank that is stopped or makes no progress; then
    the run ends with exit code 75, or restarts its trainer. It is also the timeout of collective operations (gloo and
    NCCL)."""
    network: RankNetworkConfig = RankNetworkConfig()
    """Network between the ranks."""

    def faults(self) -> Iterator[str]:
        """Faults between the fields."""
        if self.ranks % self.sequence_parallel:
            yield (
                f"ranks ({self.ranks}) is not a multiple of sequence_parallel ({self.sequence_parallel}); write a "
                "sequence_parallel that divides the ranks"
            )
        if self.offload_parameters and self.zero_stage not in (None, 3):
            yield (
                f"offload_parameters is true, and with zero_stage {self.zero_stage} each rank holds all parameters; "
                "write zero_stage: 3, or offload_parameters: false"
            )
