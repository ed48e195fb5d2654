"""Which way weights go from one process to another, by the run file."""

from __future__ import annotations

from pathlib import Path
from typing import assert_never

import torch

from strop.buffer.wait import Check
from strop.config.schema.synchronizer import CheckpointSync, CollectiveSync
from strop.sync.collective.inbox import CollectiveInbox
from strop.sync.collective.outbox import CollectiveOutbox
from strop.sync.folder import FolderVersions
from strop.sync.versions import Inbox, Outbox

ApartSync = CheckpointSync | CollectiveSync
SAVED = "sync"
"""Where a checkpoint has versions that only memory held; in the run's folder, where the two meet."""


def open_outbox(
    section: ApartSync, folder: Path, *, host: str, device: torch.device, checkpoint: Path | None
) -> Outbox:
    """The trainer's end, in a run's folder; it goes on from `checkpoint`. The explorer reaches this
    machine at `host`."""
    match section:
        case CheckpointSync():
            return FolderVersions(folder / section.folder)
        case CollectiveSync():
            saved = None if checkpoint is None else checkpoint / SAVED
            return CollectiveOutbox(folder / SAVED, section, host, device, saved)
        case _:
            assert_never(section)


def open_inbox(section: ApartSync, folder: Path, *, host: str, device: torch.device, check: Check) -> Inbox:
    """The explorer's end. `check` is called while it waits, and may raise."""
    match section:
        case CheckpointSync():
            return FolderVersions(folder / section.folder)
        case CollectiveSync():
            return CollectiveInbox(folder / SAVED, host, device, check)
        case _:
            assert_never(section)


def clear(section: ApartSync, folder: Path) -> None:
    """Delete all that a run has left on its way, for one that starts anew."""
    FolderVersions(folder / (section.folder if isinstance(section, CheckpointSync) else SAVED)).clear()
