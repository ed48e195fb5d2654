"""Findings of a check: faults, advice, and what was and what was not checked."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Findings:
    """Findings of a part of the check, one line each."""

    faults: list[str] = field(default_factory=list)
    """Why the run cannot start."""
    advice: list[str] = field(default_factory=list)
    """Warnings about a run that can start."""
    checked: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)

    def add(self, other: Findings) -> None:
        """Append the lines of another part."""
        self.faults += other.faults
        self.advice += other.advice
        self.checked += other.checked
        self.unchecked += other.unchecked
