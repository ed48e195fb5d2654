"""A reward function on its way from a run file, or a notebook, into a worker."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from strop.errors import RewardError
from strop.rewards.resolve import absolute, default_name, find
from strop.rewards.signature import Reward, bind

_INSTEAD = "Put the function into a file of its own and name it file.py:function"


@dataclass(frozen=True, slots=True)
class Function:
    """What a worker needs to have the function too. `load` is the same in every process."""

    name: str
    target: str | bytes
    """What `resolve.find` takes, or a function pickled by cloudpickle."""
    args: Mapping[str, Any]

    @classmethod
    def of(
        cls,
        function: str | Callable[..., Any],
        *,
        name: str | None = None,
        args: Mapping[str, Any] | None = None,
    ) -> Function:
        """Raises RewardError when it cannot be found, called, or sent to a worker."""
        name = default_name(function) if name is None else name
        if isinstance(function, str):
            target: str | bytes = absolute(function)
        else:
            target = _pickled(function, name)
        made = cls(name, target, args or {})
        made.load()
        return made

    def load(self) -> Reward:
        """Raises RewardError when it is not there or its signature is not understood."""
        if isinstance(self.target, str):
            return bind(find(self.target), self.name, self.args)
        try:
            function = pickle.loads(self.target)  # our own bytes, from `_pickled`
        except Exception as error:
            raise RewardError(
                f"reward {self.name!r}: the function could not be taken up by a worker: "
                f"{type(error).__name__}: {error}. {_INSTEAD}."
            ) from error
        return bind(function, self.name, self.args)


def _pickled(function: Callable[..., Any], name: str) -> bytes:
    import cloudpickle

    if not callable(function):
        raise RewardError(f"reward {name!r} is a {type(function).__name__}, not a function.")
    try:
        return cloudpickle.dumps(function)
    except Exception as error:
        raise RewardError(
            f"reward {name!r}: the function cannot be sent to a worker, because of something it uses: "
            f"{type(error).__name__}: {error}. Make that inside the function. {_INSTEAD}, else."
        ) from error
