"""Limits on restarts of supervised processes."""

from __future__ import annotations


class RestartBudget:
    """The restarts that one supervised process has left."""

    def __init__(self, max_restarts: int) -> None:
        self.max_restarts = max_restarts
        self.restarts = 0
        """Restarts so far."""

    def spend(self) -> bool:
        """Count one restart. Returns False, and counts nothing, when none is left."""
        if self.restarts >= self.max_restarts:
            return False
        self.restarts += 1
        return True

    def __str__(self) -> str:
        """`restart 1 of at most 3`"""
        return f"restart {self.restarts} of at most {self.max_restarts}"
