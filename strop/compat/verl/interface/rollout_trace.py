"""`verl.utils.rollout_trace`: the decorator of traced methods; Strop records rollouts itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def rollout_trace_op(function: F) -> F:
    """The function unchanged."""
    return function
