"""Senders and receivers of weights between processes, opened from the `synchronizer` section."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, assert_never

from strop.config.schema.buffer import CheckpointSyncConfig, CollectiveSyncConfig
from strop.sync.folder_store import FolderVersionStore
from strop.sync.transport import WeightReceiver, WeightSender
from strop.workers.waiting import StopCheck

if TYPE_CHECKING:
    import torch

CrossProcessSync = CheckpointSyncConfig | CollectiveSyncConfig
SYNC_FOLDER = "sync"
"""The folder of a collective: in the run's folder, where the trainer writes its address, and in a checkpoint,
for versions that only the trainer's memory held."""


def open_weight_sender(
    section: CrossProcessSync, folder: Path, *, host: str, device: torch.device, checkpoint: Path | None
) -> WeightSender:
    """The trainer's end of the transfer.

    `folder` is the run's; `host` is the address at which the explorer reaches this machine; `device` is the
    trainer's; `checkpoint` is the checkpoint that the trainer resumes from.
    """
    match section:
        case CheckpointSyncConfig():
            return FolderVersionStore(folder / section.folder)
        case CollectiveSyncConfig():
            # Imports torch, which the launcher of a run, which only clears the versions, does not need.
            from strop.sync.collective.sender import CollectiveSender

            saved = None if checkpoint is None else checkpoint / SYNC_FOLDER
            return CollectiveSender(folder / SYNC_FOLDER, section, host, device, saved)
        case _:
            assert_never(section)


def open_weight_receiver(
    section: CrossProcessSync, folder: Path, *, host: str, device: torch.device, check: StopCheck
) -> WeightReceiver:
    """The explorer's end of the transfer. `check` is called during waits, and may raise."""
    match section:
        case CheckpointSyncConfig():
            return FolderVersionStore(folder / section.folder)
        case CollectiveSyncConfig():
            from strop.sync.collective.receiver import CollectiveReceiver

            return CollectiveReceiver(folder / SYNC_FOLDER, host, device, check)
        case _:
            assert_never(section)


def clear_versions(section: CrossProcessSync, folder: Path) -> None:
    """Delete all versions and signals of an earlier run, before a new run starts in its folder."""
    FolderVersionStore(
        folder / (section.folder if isinstance(section, CheckpointSyncConfig) else SYNC_FOLDER)
    ).clear()
