"""A process that runs reward functions; `process.py` starts it and `pool.py` feeds it.

The time limit is `faulthandler`'s watchdog: a thread in C that needs no GIL, no signal and no main
thread. So it also ends a runaway regular expression, says where it was, and leaves no hung process
behind when the parent is gone.
"""

from __future__ import annotations

import faulthandler
import pickle
import sys
import traceback
from multiprocessing.connection import Connection

from strop.errors import RewardError
from strop.rewards.signature import Answer, Misfit, Reward, Score

Outcome = Score | str
"""What one function made of one answer, or what broke."""

_FRAMES_SHOWN = 3
_LONGEST_MESSAGE = 2000
_OURS = (__file__, sys.modules[Reward.__module__].__file__)


def main() -> None:
    """Load the functions, then score whatever comes.

    What the parent sends is answered with None when it was taken up and with a message when not;
    after None for a chunk of answers comes one outcome per answer and function.
    """
    connection, last_words = Connection(int(sys.argv[1])), int(sys.argv[2])
    faulthandler.enable(file=last_words, all_threads=False)
    try:
        functions, timeout_seconds = connection.recv()
        rewards = [function.load() for function in functions]
        connection.send(None)
        while True:
            answers = _take(connection)
            connection.send(None)
            for answer in answers:
                for reward in rewards:
                    faulthandler.dump_traceback_later(timeout_seconds, exit=True, file=last_words)
                    outcome = attempt(reward, answer)
                    faulthandler.cancel_dump_traceback_later()
                    connection.send(outcome)
                    if isinstance(outcome, str):
                        break
    except RewardError as error:
        connection.send(str(error))
    except (EOFError, ConnectionError):
        return  # the parent has no more work, or is gone


def _take(connection: Connection[object, bytes]) -> list[Answer]:
    message = connection.recv_bytes()
    try:
        return list(pickle.loads(message))
    except Exception as error:
        raise RewardError(
            f"A column of the tasks cannot be taken up by the processes that score answers: "
            f"{type(error).__name__}: {error}. Leave it out of the dataset, or write it as plain data."
        ) from error


def attempt(reward: Reward, answer: Answer) -> Outcome:
    """One call of a user's function: whatever it raises, `SystemExit` too, breaks this one rollout."""
    try:
        return reward(answer)
    except Misfit as error:
        return str(error)
    except BaseException as error:  # noqa: BLE001  (a user's code may raise anything)
        what = "".join(traceback.format_exception_only(error)).strip()
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename not in _OURS]
        where = "".join(traceback.format_list(frames[-_FRAMES_SHOWN:]))
        return f"raised {what[:_LONGEST_MESSAGE]}\n{where}".rstrip()


if __name__ == "__main__":
    main()
