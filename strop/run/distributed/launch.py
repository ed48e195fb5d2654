"""The launcher of a distributed run: starts, watches and stops explorer, trainer and buffer.

A buffer process is started before explorer and trainer, and ended after them.

Consumes    the output of the roles, line by line, and their exits.
Waits for   the end of explorer and trainer.
Unblocked   by a signal, which it passes on to both; by the failure of one role, after which it ends the
            others. A role that was killed from outside is restarted from its last saved state.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import assert_never

from strop.buffer.factory import backup_path, clear_buffer, reset_writers
from strop.config.load.loader import LoadedRun
from strop.config.preflight import require_reward
from strop.config.schema.buffer import MemorySyncConfig
from strop.config.schema.run import LocalClusterConfig, RayClusterConfig, Run
from strop.errors import Interrupted
from strop.python_rewards import PythonRewards
from strop.rewards.scorable_tasks import require_scorable_tasks
from strop.run.distributed.ray_cluster import open_ray_roles
from strop.run.distributed.role import (
    LocalRoleProcess,
    RoleEntry,
    RoleName,
    RoleSpec,
    RoleSupervisor,
    print_line,
)
from strop.run.entry.prepare_data import prepare_data
from strop.run.state.identity import run_identity, save_identity
from strop.run.state.resume import find_start
from strop.run.state.run_state import ExplorerState
from strop.runs.folder import RunFolder, reporting_write_errors
from strop.runs.metrics_file import last_metrics, read_metrics
from strop.sync.factory import clear_versions
from strop.workers.cleanup import cleanup
from strop.workers.signals import StopSignal

_POLL_SECONDS = 0.1
_MAIN_ROLES: tuple[RoleName, ...] = ("explorer", "trainer")


def launch(
    loaded: LoadedRun,
    reward: PythonRewards | None,
    entry: RoleEntry,
    stop: StopSignal | None = None,
    locks: Sequence[int] = (),
) -> int:
    """Run explorer and trainer to the end, or resume an interrupted run; returns the trainer's steps.

    `locks` are descriptors of the folder's locks, which the roles on this machine inherit.

    Raises the error that ended a role, after the other roles have saved their states and ended; `Interrupted`
    for a signal, after all roles have done so.
    """
    run, section = loaded.run, loaded.run.synchronizer
    assert not isinstance(section, MemorySyncConfig)
    require_reward(run, reward)
    require_scorable_tasks(run, reward)
    folder = RunFolder.of(run)
    identity = run_identity(run, reward)
    for note in find_start(run, folder, identity).notes:
        print_line("run", note)
    folder.create()
    with reporting_write_errors(folder.path):
        save_identity(identity, folder.path)
    prepare_data(run, reward, stop)
    if ExplorerState.load(folder.explorer) is None:
        _clear_run(loaded, folder)
    elif run.has_buffer_process:
        reset_writers(run.buffer, folder.path)
    if run.has_buffer_process:
        backup = backup_path(run.buffer, folder.path)
        print_line("run", f"The buffer is a process of its own, with a backup in {backup}.")
    resumable = replace(loaded, run=run.model_copy(update={"resume": "auto"}), sources=dict(loaded.sources))
    names: tuple[RoleName, ...] = ("buffer", *_MAIN_ROLES) if run.has_buffer_process else _MAIN_ROLES
    specs = [RoleSpec(name, resumable, reward if name == "explorer" else None, sys.argv) for name in names]
    with (
        _open_roles(run, specs, entry, section.max_restarts, locks) as roles,
        stop or StopSignal() as stop,
        cleanup(partial(_end, roles)),
    ):
        _watch(roles, stop)
    return int(last_metrics(read_metrics(folder.metrics))["step"])


@contextmanager
def _open_roles(
    run: Run, specs: Sequence[RoleSpec], entry: RoleEntry, max_restarts: int, locks: Sequence[int]
) -> Iterator[Sequence[RoleSupervisor]]:
    """Start the roles where `cluster` places them."""
    match run.cluster:
        case LocalClusterConfig():
            yield [
                RoleSupervisor(spec.name, partial(LocalRoleProcess, spec, entry, locks), max_restarts)
                for spec in specs
            ]
        case RayClusterConfig() as section:
            with open_ray_roles(run, section, specs, entry.serve, max_restarts) as roles:
                yield roles
        case _:
            assert_never(run.cluster)


def _clear_run(loaded: LoadedRun, folder: RunFolder) -> None:
    """Delete what an older run left in the buffer and in the synchronizer's folder."""
    section = loaded.run.synchronizer
    assert not isinstance(section, MemorySyncConfig)
    clear_buffer(loaded.run.buffer, folder.path, is_process=loaded.run.has_buffer_process)
    clear_versions(section, folder.path)
    ExplorerState().save(folder.explorer)


def _watch(roles: Sequence[RoleSupervisor], stop: StopSignal) -> None:
    main = [role for role in roles if role.name in _MAIN_ROLES]
    while not all(role.is_done for role in main):
        if stop.received is not None:
            _end(roles)
            raise Interrupted(
                f"Stopped by {stop.reason}. Explorer and trainer have saved their states; the same command resumes "
                "the run.",
                stop.received,
            )
        for role in roles:
            role.check()
        time.sleep(_POLL_SECONDS)


def _end(roles: Sequence[RoleSupervisor]) -> None:
    """End explorer and trainer first, because they still use the buffer while they end."""
    main = [role for role in roles if role.name in _MAIN_ROLES]
    others = [role for role in roles if role.name not in _MAIN_ROLES]
    for group in (main, others):
        for role in group:
            role.request_stop()
        for role in group:
            role.wait()
