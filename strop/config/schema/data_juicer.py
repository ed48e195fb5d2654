"""Operators of Data-Juicer, which a service runs: for tasks before the run, and for rollouts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import Field

from strop.config.schema.base import Section
from strop.config.units import MAX_SECONDS


class DataJuicerSection(Section):
    """Operators of Data-Juicer and the service that runs them."""

    url: str | None = Field(None, pattern=r"^https?://")
    """Address of a service that runs, whose token is in STROP_DATA_JUICER_TOKEN; null to start one."""
    python: str | None = None
    """Interpreter of an environment with py-data-juicer, by which Strop starts the service on this machine; null for
    the environment variable STROP_DATA_JUICER_PYTHON."""
    port: int = Field(0, ge=0, le=65535)
    """Port on 127.0.0.1 of the service that Strop starts; 0 for a free one."""
    config: str | None = None
    """Data-Juicer recipe, a YAML file on the machine of the service."""
    operators: tuple[dict[str, Any], ...] | None = None
    """Operators, each a mapping from its name to its arguments."""
    processes: int = Field(1, gt=0)
    """Number of processes of each operator."""
    timeout_seconds: float = Field(600.0, gt=0, le=MAX_SECONDS)
    """Maximum time without an answer to a request."""
    wait_seconds: float = Field(600.0, ge=0, le=MAX_SECONDS)
    """Maximum time that a service at `url` may be away during a run; it is asked again every second."""
    max_restarts: int = Field(3, ge=0)
    """Maximum restarts of a service that Strop has started."""

    def faults(self) -> Iterator[str]:
        """Faults between the fields."""
        if (self.config is None) == (not self.operators):
            yield "data_juicer needs either config or operators; write one of them"
        if self.url is not None and (self.python is not None or self.port):
            yield "data_juicer has url, so Strop starts no service; remove python and port, or url"
