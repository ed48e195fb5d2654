"""Registry of the supported AzureML components."""

from __future__ import annotations

from collections.abc import Mapping

from strop.compat.azureml.component import Component
from strop.compat.azureml.grpo import GRPO
from strop.compat.azureml.rft_trainer import RFT_TRAINER
from strop.compat.azureml.verl_trainer import VERL_TRAINER
from strop.config.suggest import did_you_mean
from strop.errors import ConfigError

COMPONENTS: Mapping[str, Component] = {
    component.name: component for component in (RFT_TRAINER, VERL_TRAINER, GRPO)
}


def find_component(name: str) -> Component:
    """A component by its Strop name or its AzureML name. Raises ConfigError for an unknown name."""
    known = {**COMPONENTS, **{component.azureml_name: component for component in COMPONENTS.values()}}
    if name not in known:
        hint = did_you_mean(name, known) or "."
        raise ConfigError(f"Unknown component {name!r}{hint} Known components: {', '.join(COMPONENTS)}.")
    return known[name]
