"""Processes that torchrun, or another launcher with the same environment variables, has started."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from strop.errors import ConfigError

_INTEGERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT")


@dataclass(frozen=True, slots=True)
class TorchrunProcess:
    """This process among those of its launcher."""

    rank: int
    """Number of the process; 0 is the run's own process."""
    ranks: int
    """Number of all processes."""
    local_rank: int
    """Number of the process on its node."""
    local_ranks: int
    """Number of processes on its node."""
    master_address: str
    """Address of the node with process 0."""
    master_port: int
    """Port there of the launcher's key-value store."""
    launcher_has_store: bool
    """Whether the launcher runs the store; otherwise process 0 does."""
    attempt: int
    """Number of restarts by the launcher."""


def torchrun_process(environment: Mapping[str, str] = os.environ) -> TorchrunProcess | None:
    """This process, from its environment variables; None if it was started alone.

    Raises ConfigError for a variable that is not a number.
    """
    if not all(environment.get(name) for name in (*_INTEGERS, "MASTER_ADDR")):
        return None
    try:
        rank, ranks, local_rank, port = (int(environment[name]) for name in _INTEGERS)
        local_ranks = int(environment.get("LOCAL_WORLD_SIZE", "1"))
        attempt = int(environment.get("TORCHELASTIC_RESTART_COUNT", "0"))
    except ValueError as error:
        values = ", ".join(f"{name}={environment[name]}" for name in _INTEGERS)
        raise ConfigError(
            f"The environment variables of torchrun are {values}, and they must be whole numbers. Unset RANK to start "
            "the run without a launcher."
        ) from error
    if ranks == 1:
        return None
    has_store = environment.get("TORCHELASTIC_USE_AGENT_STORE", "").lower() == "true"
    return TorchrunProcess(
        rank, ranks, local_rank, local_ranks, environment["MASTER_ADDR"], port, has_store, attempt
    )
