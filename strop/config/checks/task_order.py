"""Checks of `data.order` against the rest of the run."""

from __future__ import annotations

from collections.abc import Iterator

from strop.config.schema.algorithm import OfflineAlgorithmConfig
from strop.config.schema.run import Run
from strop.config.schema.synchronizer import FixedStyleConfig, MemorySyncConfig
from strop.config.schema.task_order import ColumnOrderConfig


def task_order_faults(run: Run) -> Iterator[str]:
    """Faults of an order that the run's tasks cannot have."""
    order = run.data.order
    if order is None:
        return
    if run.data.queue is not None:
        yield "data.order: a task queue is first in, first out; remove the order, or order the rows in the table"
    if isinstance(order, ColumnOrderConfig):
        return
    if isinstance(run.algorithm, OfflineAlgorithmConfig):
        yield (
            f"data.order: {order.type} needs the success rates of rollouts, which algorithm {run.algorithm.type} "
            "does not sample; write `order: {type: column, column: ...}`"
        )
    section = run.synchronizer
    if not isinstance(section, MemorySyncConfig) and not isinstance(section.style, FixedStyleConfig):
        yield (
            f"data.order: under synchronizer.style {section.style.type} the next tasks are drawn before the results of "
            f"earlier ones are known, at times that no restart repeats, so {order.type} would not resume exactly; "
            "write style: fixed, or an order by column"
        )
    if run.data.incomplete_batch == "keep":
        yield f"data.incomplete_batch: data.order {order.type} has no incomplete steps; remove it"
