"""The explorer as a process of its own, from a loaded run file to its last group."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

from strop.buffer.table import clear_buffer, open_buffer
from strop.config.check import require_reward
from strop.config.load import Loaded, save_resolved
from strop.config.schema import Run
from strop.config.schema.algorithm import Dpo, Sft
from strop.config.schema.synchronizer import MemorySync
from strop.protocols import Buffer
from strop.run.apart.explore_driver import ExploreDriver, TrainerEnded
from strop.run.apart.explore_state import ExploreState
from strop.run.apart.host import own_host
from strop.run.apart.meeting import meeting_place, met
from strop.run.collect import Collector
from strop.run.explorer import Explorer
from strop.run.folder import RunFolder, RunState
from strop.run.helpers import open_helpers
from strop.run.length import length_of
from strop.run.records.record import Recorder
from strop.run.resume import Start, find_start
from strop.run.runners import make_runners
from strop.run.sampler import open_own_sampler
from strop.run.stopping import StopSignal
from strop.run.tasks import load_tasks
from strop.run.tokenizer import tokenizer_of
from strop.sync.publish import Subscriber
from strop.sync.table import ApartSync, clear, open_inbox
from strop.sync.versions import Inbox

MEMBER = "explorer-0"
"""Its name in the buffer."""


def explore(loaded: Loaded, reward: Callable[..., Any] | None = None) -> ExploreState:
    """Explore to the end of the run, or go on from where an earlier start was stopped or killed.

    Inside, SIGINT and SIGTERM raise `Interrupted` at the next good moment.
    """
    run = loaded.run
    algorithm, section = run.algorithm, run.synchronizer
    assert not isinstance(algorithm, Sft | Dpo) and not isinstance(section, MemorySync)
    require_reward(run, reward)
    folder = RunFolder.of(run)
    own = folder.explorer
    find_start(run, own)  # for what it refuses: an explorer keeps no checkpoints
    own.create()
    tokenizer = tokenizer_of(run)
    tasks = load_tasks(run, tokenizer)
    length = length_of(run, tasks.train.steps_per_epoch(run.trainer.tasks_per_step))
    with (
        met(run, tasks.train, "explorer"),
        StopSignal() as stop,
        open_helpers(run, reward) as helpers,
        open_own_sampler(run, tokenizer) as sampler,
    ):
        runners = make_runners(run, sampler, tokenizer, helpers.services)
        explorer = Explorer(runners, helpers.rewards, stop, seed=run.seed)
        state = ExploreState.load(own) or _begin(run, section, folder)
        save_resolved(run, own.run_file)
        notes = (*tasks.notes(), *meeting_place(run), f"sampling: {sampler.description}")
        start = Start(RunState(step=state.step), None, notes)
        with (
            closing(
                open_inbox(section, folder.path, host=own_host(run), device=sampler.device, check=stop.check)
            ) as inbox,
            closing(
                open_buffer(
                    run.buffer,
                    folder.path,
                    part="writer",
                    member=MEMBER,
                    check=partial(_check_both, stop, inbox, length.steps),
                )
            ) as buffer,
            Recorder(own, loaded, length, start) as recorder,
        ):
            subscriber = Subscriber(
                sampler,
                section.style,
                inbox,
                timeout_seconds=section.timeout_seconds,
                check=stop.check,
                first=run.trainer.warm_up_steps,
            )
            collector = Collector(run, algorithm, explorer, tasks.train)
            driver = ExploreDriver(
                run, explorer, collector, tasks, buffer, subscriber, state, length, own, recorder
            )
            return driver.run()


def _check_both(stop: StopSignal, inbox: Inbox, last: int) -> None:
    stop.check()
    if inbox.ended() >= last:
        raise TrainerEnded


def _begin(run: Run, section: ApartSync, folder: RunFolder) -> ExploreState:
    """A new run begins with an empty buffer, and without the weights of an older one."""
    clear(section, folder.path)
    with closing(open_buffer(run.buffer, folder.path, part="writer", member=MEMBER)) as buffer:
        used = _is_used(buffer)
    if used:
        clear_buffer(run.buffer, folder.path, member=MEMBER)
    state = ExploreState()
    state.save(folder.explorer)
    return state


def _is_used(buffer: Buffer) -> bool:
    counts = buffer.counts()
    return bool(counts.queued or counts.claimed or counts.done)
