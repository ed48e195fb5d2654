"""Secrets in the arguments of Trinity's monitors, which a run gets as environment variables of the services."""

from __future__ import annotations

import os
from collections.abc import Mapping

from strop.compat.ledger.key_mapping import ForeignValues, InactiveCheck, KeyMapping, mapped, unless
from strop.compat.ledger.value_types import STRING, nullable
from strop.config.environment_values import remember_secret

_TYPE, _ARGS = "monitor.monitor_type", "monitor.monitor_args"
_VARIABLES = {
    "api_key": {"wandb": "WANDB_API_KEY", "swanlab": "SWANLAB_API_KEY"},
    "username": {"mlflow": "MLFLOW_TRACKING_USERNAME"},
    "password": {"mlflow": "MLFLOW_TRACKING_PASSWORD"},
}
"""Environment variable of each argument, by monitor."""


def _in_file(name: str) -> InactiveCheck:
    """Notice for a secret that a file holds, and no environment variable."""

    def notice(foreign: ForeignValues) -> str | None:
        variable, value = _VARIABLES[name][foreign[_TYPE]], foreign[f"{_ARGS}.{name}"]
        if not value or value == os.environ.get(variable):
            return None
        return (
            f"a secret does not belong in a file, and the run's own files do not get it; set the environment variable "
            f"{variable} instead, and remove the key"
        )

    return notice


ROWS: tuple[KeyMapping, ...] = tuple(
    mapped(
        f"{_ARGS}.{name}",
        None,
        note=f"the run gets it as {' or '.join(variables.values())}",
        value_type=nullable(STRING),
        inactive=unless(_TYPE, *variables),
        warn=_in_file(name),
    )
    for name, variables in _VARIABLES.items()
)


def monitor_environment(foreign: ForeignValues) -> Mapping[str, str]:
    """The environment variables of the monitor's secrets, which this process prints by their names from now on."""
    found = {
        variables[foreign[_TYPE]]: str(foreign[f"{_ARGS}.{name}"])
        for name, variables in _VARIABLES.items()
        if foreign[_TYPE] in variables and foreign[f"{_ARGS}.{name}"]
    }
    for variable, value in found.items():
        if not variable.endswith("USERNAME"):
            remember_secret(variable, value)
    return found
