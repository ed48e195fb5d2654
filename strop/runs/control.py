"""Stop requests to runs of this machine, and the command that continues a run."""

from __future__ import annotations

import shlex
import signal
import socket

from strop.errors import RunFolderError
from strop.runs.folder import EXPLORER_LOCK_FILE, LOCK_FILE, RunFolder
from strop.runs.lock import current_holder
from strop.runs.sessions import read_sessions
from strop.workers.files import is_regular
from strop.workers.process_birth import signal_process


def request_stop(folder: RunFolder) -> list[int]:
    """Send SIGTERM to the processes that hold the folder's locks; each saves its state and stops. Returns their ids.

    A process that a lock's file names gets a signal only if it holds that lock: a file without a lock is left over, and
    its number may be that of another process by now.

    Raises `RunFolderError` where no process of this machine holds one.
    """
    locks = {
        path: current_holder(path) for path in (folder.path / LOCK_FILE, folder.path / EXPLORER_LOCK_FILE)
    }
    here = socket.gethostname()
    stopped, elsewhere = set(), set()
    for path, holder in locks.items():
        if holder is None or holder.pid in stopped:
            continue
        if holder.host != here:
            elsewhere.add(holder.host)
            continue
        try:
            if signal_process(holder.pid, holder.birth, signal.SIGTERM, holding=path):
                stopped.add(holder.pid)
        except PermissionError as error:
            raise RunFolderError(
                f"The run in {folder.path} is process {holder.pid}, which belongs to another user. Stop it as that "
                "user."
            ) from error
    if not stopped:
        where = (
            f"It runs on {', '.join(sorted(elsewhere))}: stop it there"
            if elsewhere
            else "It has ended already"
        )
        raise RunFolderError(f"No process of this machine writes into {folder.path}. {where}.")
    return sorted(stopped)


def resume_arguments(folder: RunFolder) -> list[str]:
    """Arguments of `strop` that continue a run from its last checkpoint, by the resolved run file in its folder.

    Raises `RunFolderError` where the folder has none.
    """
    if not is_regular(folder.run_file):
        raise RunFolderError(
            f"{folder.path} has no run.yaml, so the run cannot be continued from its folder."
        )
    here = bool(sessions := read_sessions(folder.path)) and "--here" in shlex.split(sessions[-1]["command"])
    return ["train", str(folder.run_file), *(["--here"] if here else [])]
