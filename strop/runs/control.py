"""Stop requests to runs of this machine, and the command that continues a run."""

from __future__ import annotations

import os
import shlex
import signal
import socket

from strop.errors import RunFolderError
from strop.runs.folder import EXPLORER_LOCK_FILE, LOCK_FILE, RunFolder
from strop.runs.lock import LockHolder
from strop.runs.sessions import read_sessions


def request_stop(folder: RunFolder) -> list[int]:
    """Send SIGTERM to the processes that hold the folder's locks; each saves its state and stops. Returns their ids.

    Raises `RunFolderError` where no process of this machine holds one.
    """
    found = [LockHolder.read(folder.path / name) for name in (LOCK_FILE, EXPLORER_LOCK_FILE)]
    holders = [holder for holder in found if holder is not None]
    here = {holder.pid for holder in holders if holder.host == socket.gethostname() and not holder.has_ended}
    stopped = []
    for pid in sorted(here):
        try:
            os.kill(pid, signal.SIGTERM)
        except ProcessLookupError:
            continue
        except PermissionError as error:
            raise RunFolderError(
                f"The run in {folder.path} is process {pid}, which belongs to another user. Stop it as that user."
            ) from error
        stopped.append(pid)
    if not stopped:
        elsewhere = ", ".join(sorted({holder.host for holder in holders} - {socket.gethostname()}))
        where = f"It runs on {elsewhere}: stop it there" if elsewhere else "It has ended already"
        raise RunFolderError(f"No process of this machine writes into {folder.path}. {where}.")
    return stopped


def resume_arguments(folder: RunFolder) -> list[str]:
    """Arguments of `strop` that continue a run from its last checkpoint, by the resolved run file in its folder.

    Raises `RunFolderError` where the folder has none.
    """
    if not folder.run_file.is_file():
        raise RunFolderError(
            f"{folder.path} has no run.yaml, so the run cannot be continued from its folder."
        )
    here = bool(sessions := read_sessions(folder.path)) and "--here" in shlex.split(sessions[-1]["command"])
    return ["train", str(folder.run_file), *(["--here"] if here else [])]
