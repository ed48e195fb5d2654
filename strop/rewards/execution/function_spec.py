"""Description of a reward function that can be sent to a worker process."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from strop.errors import RewardError
from strop.extensions import imported, provide_tool_modules, tool_class
from strop.rewards.execution.signature import BoundReward, bind_reward
from strop.rewards.registry import (
    absolute_reference,
    builtin_reward,
    default_reward_name,
    is_builtin_path,
    load_reward_function,
)

_ADVICE = "Put the function into a file and name it as file.py:function"


@dataclass(frozen=True, slots=True)
class RewardFunctionSpec:
    """A reward function by reference or by value. `load` returns the same function in every process."""

    name: str
    target: str | bytes
    """A reference for `load_reward_function`, or a function pickled by cloudpickle."""
    args: Mapping[str, Any]
    on_timeout: Literal["error", "zero"] = "error"
    """Treatment of a response that exceeds the time limit: failure, or the value 0."""

    @classmethod
    def of(
        cls,
        function: str | Callable[..., Any],
        *,
        name: str | None = None,
        args: Mapping[str, Any] | None = None,
        on_timeout: Literal["error", "zero"] = "error",
    ) -> RewardFunctionSpec:
        """Raises RewardError if the function cannot be found, called, or sent to a worker process.

        `on_timeout` of a built-in function is always `zero`.
        """
        name = default_reward_name(function) if name is None else name
        if isinstance(function, str):
            target: str | bytes = absolute_reference(function)
            if builtin_reward(function) or is_builtin_path(function):
                on_timeout = "zero"
        else:
            target = _pickled(function, name)
        spec = cls(name, target, args or {}, on_timeout)
        spec.load()
        return spec

    def load(self) -> BoundReward:
        """Raises RewardError if the function does not exist or has an unsupported signature."""
        if isinstance(self.target, str):
            provide_tool_modules()
            found = load_reward_function(self.target)
            if construct := tool_class(found, lambda extension: extension.reward_classes):
                return bind_reward(imported(construct)(found, self.name, self.args), self.name, {})
            return bind_reward(found, self.name, self.args)
        try:
            function = pickle.loads(self.target)  # bytes of this run's own process, from `_pickled`
        except Exception as error:
            raise RewardError(
                f"reward {self.name!r}: a worker process cannot unpickle the function: "
                f"{type(error).__name__}: {error}. {_ADVICE}."
            ) from error
        return bind_reward(function, self.name, self.args)


def _pickled(function: Callable[..., Any], name: str) -> bytes:
    import cloudpickle

    if not callable(function):
        raise RewardError(f"reward {name!r} is a {type(function).__name__}, not a function.")
    try:
        return bytes(cloudpickle.dumps(function))
    except Exception as error:
        raise RewardError(
            f"reward {name!r}: the function cannot be sent to a worker process, because it uses an object that "
            f"cannot be pickled: {type(error).__name__}: {error}. Create that object inside the function. "
            f"Otherwise: {_ADVICE}."
        ) from error
