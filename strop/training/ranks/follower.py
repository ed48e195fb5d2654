"""A rank that is not the first: a process that does what it is told; `group.py` starts it and tells it."""

from __future__ import annotations

import pickle
import sys
import traceback
from multiprocessing.connection import Connection
from typing import Any

from strop.errors import StropError
from strop.training.ranks.messages import Call, Done, Failed, Make


def main() -> None:
    """Join, then do whatever comes, until the first rank closes the connection or is gone."""
    connection: Connection[bytes, bytes] = Connection(int(sys.argv[1]))
    objects: dict[str, Any] = {}
    answer: Done | Failed = Done(None)
    try:
        pickle.loads(connection.recv_bytes()).join()
        while not isinstance(answer, Failed):
            connection.send_bytes(pickle.dumps(answer))
            answer = _do(pickle.loads(connection.recv_bytes()), objects)
        connection.send_bytes(pickle.dumps(answer))
    except (EOFError, ConnectionError):
        return


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


if __name__ == "__main__":
    main()
