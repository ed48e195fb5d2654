"""`record.wandb`, `record.mlflow`, `record.swanlab`: options of the tracking services."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from strop.config.schema.base import Section

TRACKING_SERVICES = ("wandb", "mlflow", "swanlab")
"""Monitors that have a section of options, and a package and an extra of their name."""


class WandbConfig(Section):
    """Weights & Biases. The API key is the environment variable `WANDB_API_KEY`, or that of `wandb login`."""

    entity: str | None = None
    """User or team; the account's default entity if null."""
    group: str | None = None
    """Group of the run in the project; none if null."""
    tags: tuple[str, ...] = ()
    """Tags of the run."""
    mode: Literal["online", "offline"] | None = None
    """`offline` writes into the run folder for `wandb sync`; null takes `WANDB_MODE`, else `online`."""
    base_url: str | None = None
    """URL of a server of your own; wandb.ai if null."""


class MlflowConfig(Section):
    """MLflow Tracking. Users and passwords are MLflow's own environment variables."""

    tracking_uri: str | None = None
    """Tracking server or database; null takes `MLFLOW_TRACKING_URI`, else `mlflow.db` in the `output` folder."""
    experiment: str | None = None
    """Name of the experiment; `project` if null."""
    tags: dict[str, str] = Field(default_factory=dict)
    """Tags of the run."""


class SwanlabConfig(Section):
    """SwanLab. The API key is the environment variable `SWANLAB_API_KEY`, or that of `swanlab login`."""

    workspace: str | None = None
    """User or organization; the account's default workspace if null."""
    group: str | None = None
    """Group of the run in the project; none if null."""
    tags: tuple[str, ...] = ()
    """Tags of the run."""
    mode: Literal["online", "offline", "local"] | None = None
    """`offline` and `local` write into the run folder, for `swanlab sync` and `swanlab watch`; null takes
    `SWANLAB_MODE`, else `online`."""
