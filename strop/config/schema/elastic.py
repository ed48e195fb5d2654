"""`trainer.elastic`: continuation of a run with fewer ranks after the loss of a node."""

from __future__ import annotations

from pydantic import Field

from strop.config.schema.base import Section
from strop.config.units import MAX_SECONDS


class ElasticConfig(Section):
    """After the loss of ranks the run continues from its last checkpoint: under torchrun and on a Ray cluster with the
    ranks that are left, otherwise with new processes for all of them."""

    min_ranks: int = Field(1, gt=0)
    """Minimum number of ranks under torchrun or on Ray, including the first one; with fewer the run ends."""
    wait_seconds: float = Field(30.0, ge=0, le=MAX_SECONDS)
    """Time under torchrun or on Ray for which lost ranks may come back before the run continues without them."""
    max_restarts: int = Field(3, ge=0)
    """Maximum number of continuations of a run in one process; a separate trainer has
    `synchronizer.max_restarts`."""
