"""Role of a reward worker process; `worker_pool.py` starts it and sends responses.

The time limit is the watchdog of `faulthandler`: a C thread that needs neither the GIL, nor a signal, nor the
main thread. It also stops a runaway regular expression, reports the position in the code, and leaves no
hanging process behind when the parent has died.
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import sys
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from strop.errors import RewardError
from strop.rewards.execution.function_spec import RewardFunctionSpec
from strop.rewards.execution.signature import BoundReward, RewardInput, RewardValue, SignatureError
from strop.workers.child_process import ProcessLimits

RewardJob = tuple[RewardInput, int]
"""A response, and the index of the first function to call on it."""
RewardOutcome = RewardValue | str
"""Value of one function for one response, or the error message."""

_FRAMES_SHOWN = 3
_MAX_MESSAGE_CHARS = 2000
_INTERNAL_FILES = (__file__, sys.modules[BoundReward.__module__].__file__)


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """First message to a reward worker."""

    functions: tuple[RewardFunctionSpec, ...]
    timeout_seconds: float
    """Time limit of one function on one response."""
    limits: ProcessLimits


def serve(connection: Connection[Any, Any], fault_output: int) -> None:
    """Load the functions, then score responses until the parent closes the connection.

    The worker replies to each message with None if it could read the message, else with an error message.
    After the None for a list of jobs it sends one outcome per job and function.
    """
    faulthandler.enable(file=fault_output, all_threads=False)
    try:
        settings: WorkerSettings = connection.recv()
        settings.limits.apply()
        rewards = [function.load() for function in settings.functions]
        connection.send(None)
        while True:
            jobs = _receive(connection)
            connection.send(None)
            for response, first in jobs:
                for outcome in _outcomes(rewards[first:], response, settings.timeout_seconds, fault_output):
                    connection.send(outcome)
    except RewardError as error:
        connection.send(str(error))
    except (EOFError, ConnectionError):
        return  # the parent has closed the connection or died


def _outcomes(
    rewards: Sequence[BoundReward], response: RewardInput, timeout_seconds: float, fault_output: int
) -> Iterator[RewardOutcome]:
    """Outcome of each function, up to the first one that fails."""
    process = os.getpid()
    for reward in rewards:
        faulthandler.dump_traceback_later(timeout_seconds, exit=True, file=fault_output)
        outcome = call_reward(reward, response)
        if os.getpid() != process:
            os._exit(0)  # a fork of the worker, made by the function
        faulthandler.cancel_dump_traceback_later()
        yield outcome
        if isinstance(outcome, str):
            return


def _receive(connection: Connection[Any, Any]) -> list[RewardJob]:
    message = connection.recv_bytes()
    try:
        return list(pickle.loads(message))
    except Exception as error:
        raise RewardError(
            "A column of the tasks cannot be unpickled in the reward worker processes: "
            f"{type(error).__name__}: {error}. Remove the column from the dataset, or store it as plain data."
        ) from error


def call_reward(reward: BoundReward, response: RewardInput) -> RewardOutcome:
    """Call a user's function once. Any exception, `SystemExit` included, fails only this rollout."""
    try:
        return reward(response)
    except SignatureError as error:
        return str(error)
    except BaseException as error:  # noqa: BLE001  (user code may raise anything)
        what = "".join(traceback.format_exception_only(error)).strip()
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename not in _INTERNAL_FILES]
        where = "".join(traceback.format_list(frames[-_FRAMES_SHOWN:]))
        return f"raised {what[:_MAX_MESSAGE_CHARS]}\n{where}".rstrip()
