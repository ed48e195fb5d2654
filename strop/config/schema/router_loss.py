"""`trainer.router_loss`: auxiliary losses of the routers of a mixture of experts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from strop.config.schema.base import Section


class RouterLossConfig(Section):
    """Losses on the routers of a mixture of experts, added to the algorithm's loss."""

    balance_coef: float = Field(0.0, ge=0)
    """Coefficient of the load-balancing loss (Switch Transformer, arXiv 2101.03961, equations 4 to 6); 0 for none.
    Above 0, each update has an additional forward pass, which measures the load of the experts over the update."""
    balance_over: Literal["layer", "model"] = "layer"
    """Router outputs that one load is computed of: those of each layer, with the sum over layers as the loss, as in
    Megatron; or those of all layers together, as in transformers."""
    z_coef: float = Field(0.0, ge=0)
    """Coefficient of the router z-loss, summed over layers (ST-MoE, arXiv 2202.08906, equation 5); 0 for none."""

    def faults(self) -> Iterator[str]:
        """Faults between the fields."""
        if self.balance_coef == self.z_coef == 0:
            yield "balance_coef and z_coef are 0, so there is no loss; write one of them, or remove router_loss"
