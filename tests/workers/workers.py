"""Worker targets for these tests."""

from __future__ import annotations

import os
import time

from strop.workers.worker import Channel


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
