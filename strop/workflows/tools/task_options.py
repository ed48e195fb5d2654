"""Options of a task for its tools and its interaction, in the columns that verl uses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from strop.types import Task


@dataclass(frozen=True, slots=True)
class TaskOptions:
    """Options of one task. Keys with null values, which Parquet adds, are removed."""

    tools_kwargs: Mapping[str, Any]
    """`create_kwargs`, `execute_kwargs`, `calc_reward_kwargs` and `release_kwargs` by tool."""
    interaction_kwargs: Mapping[str, Any]
    """`name` of the interaction, and arguments of its methods."""
    tool_selection: tuple[str, ...] | None
    """Names of the tools that the model may call; None for all tools."""

    @classmethod
    def of(cls, task: Task) -> TaskOptions:
        """Options in the column `extra_info`, or in columns of these names."""
        extra_info = task.extra.get("extra_info")
        inside = extra_info if isinstance(extra_info, Mapping) else {}

        def column(name: str) -> Any:
            return inside.get(name) or task.extra.get(name)

        selection = column("tool_selection")
        return cls(
            _without_nulls(column("tools_kwargs") or {}),
            _without_nulls(column("interaction_kwargs") or {}),
            None if selection is None else tuple(selection),
        )


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return value
