"""Worker targets for these tests."""

from __future__ import annotations

import os
import signal
import time

from strop.workers.waiting import wait_until
from strop.workers.worker import Channel, Worker


def echo(channel: Channel) -> None:
    """Send this process's id, then every message back; the message `enough` ends the worker."""
    channel.send(os.getpid())
    while (message := channel.receive()) != "enough":
        channel.send(message)


def fail(channel: Channel) -> None:
    raise ValueError(f"what to do with {channel.receive()}?")


def sleep(channel: Channel) -> None:
    channel.send("good night")
    time.sleep(600)


def check_silence(worker: Worker) -> None:
    """An `echo` worker is silent while its process is stopped, and alive before and after."""
    pid = worker.receive()

    def becomes(silent: bool) -> bool:
        return wait_until(
            lambda: (worker.silent_seconds() > 3) == silent, "", timeout_seconds=600, interval_seconds=0.1
        )

    assert becomes(silent=False)
    os.kill(pid, signal.SIGSTOP)
    assert becomes(silent=True)
    os.kill(pid, signal.SIGCONT)
    assert becomes(silent=False)
    worker.send("still there")
    assert worker.receive() == "still there"
