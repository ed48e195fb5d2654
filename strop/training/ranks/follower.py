"""A rank that is not the first: a worker that does what it is told; `group.py` starts it and tells it."""

from __future__ import annotations

import traceback
from threading import Thread

from strop.errors import StropError
from strop.training.ranks.member import Member
from strop.training.ranks.messages import Call, Done, Failed, Make, Save
from strop.workers.worker import Channel


def follow(channel: Channel) -> None:
    """Join, then do whatever comes, until the first rank is gone, or this one has failed."""
    member = Member(channel.receive())
    answer: Done | Failed = Done(member.node)
    while not isinstance(answer, Failed):
        channel.send(answer)
        answer = _do(channel.receive(), member)
    channel.send(answer)


def _do(message: Make | Call | Save, member: Member) -> Done | Failed:
    try:
        match message:
            case Make(name, build):
                member.make(name, build)
            case Save():
                Thread(target=member.begin(message), name="strop-save", daemon=True).start()
            case Call(name, call):
                return Done(call(member.engines[name]))
        return Done(None)
    except StropError as error:
        return Failed(str(error), type(error))
    except Exception:  # noqa: BLE001  (the first rank is told, and raises it)
        return Failed(traceback.format_exc(), None)
