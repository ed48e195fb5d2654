"""A rank that is not the first: a worker that does what it is told; `group.py` starts it and tells it."""

from __future__ import annotations

import traceback
from typing import Any

from strop.errors import StropError
from strop.training.ranks.messages import Call, Done, Failed, Make
from strop.workers.worker import Channel


def follow(channel: Channel) -> None:
    """Join, then do whatever comes, until the first rank is gone, or this one has failed."""
    objects: dict[str, Any] = {}
    answer: Done | Failed = Done(None)
    channel.receive().join()
    while not isinstance(answer, Failed):
        channel.send(answer)
        answer = _do(channel.receive(), objects)
    channel.send(answer)


def _do(message: Make | Call, objects: dict[str, Any]) -> Done | Failed:
    try:
        if isinstance(message, Make):
            objects[message.name] = message.build()
            return Done(None)
        return Done(message.call(objects[message.name]))
    except StropError as error:
        return Failed(str(error), type(error))
    except Exception:  # noqa: BLE001  (the first rank is told, and raises it)
        return Failed(traceback.format_exc(), None)
