"""`trainer.engine.network`: the network between the ranks of a trainer."""

from __future__ import annotations

from pydantic import Field

from strop.config.schema.base import Section
from strop.config.units import MAX_SECONDS


class RankNetworkConfig(Section):
    """Network between the ranks, and the time limits of their rendezvous."""

    interface: str | None = None
    """Network interface for the traffic between ranks (gloo and NCCL) and for their rendezvous, such as `eth0`; null
    is the one that leads to the first rank."""
    join_timeout_seconds: float = Field(1800.0, gt=0, le=MAX_SECONDS)
    """Maximum time in which all ranks start and connect to each other."""
    node_timeout_seconds: float = Field(20.0, gt=0, le=MAX_SECONDS)
    """Maximum time for which another node may give no sign of life, under torchrun or on Ray; then it counts as
    lost."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Environment variables that each rank sets before it joins the others, such as `NCCL_IB_HCA: mlx5`."""
