"""Reward functions written for Trinity-RFT, and what their files import from the package `trinity`.

`provide_reward_modules` lets such a file be imported where Trinity-RFT is not installed. A reward function is a
class: its constructor gets the arguments of the configuration, and calling it with a response gives the named
parts of the reward, whose sum is the reward.
"""

from __future__ import annotations

import inspect
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from strop.compat.trinity.workflows import REWARDS, reward_functions
from strop.config.user_code import ImportPath, construct
from strop.errors import RewardError
from strop.provided_modules import provide_modules
from strop.rewards.builtin.format import format_reward
from strop.rewards.execution.signature import RewardInput, bind_reward
from strop.rewards.registry import default_reward_name, load_reward_function

TRINITY = "trinity"
"""Import name of Trinity-RFT."""
DISTRIBUTION = "trinity-rft"
"""Name under which Trinity-RFT is installed."""


class Registry:
    """Classes by the names under which a user's files register them."""

    def __init__(self, name: str, default_mapping: Mapping[str, Any] | None = None) -> None:
        self.name = name
        self.modules: dict[str, Any] = dict(default_mapping or {})

    def get(self, key: str) -> Any:
        """The class of that name, or None."""
        return self.modules.get(key)

    def register_module(
        self, module_name: str, module_cls: Any = None, force: bool = False, lazy: bool = False
    ) -> Any:
        """Register a class, or return a decorator that does. A file that is loaded again replaces its classes."""

        def register(kind: Any) -> Any:
            self.modules[module_name or kind.__name__] = kind
            return kind

        return register if module_cls is None else register(module_cls)


class RewardFn(ABC):
    """Base class of reward functions."""

    @abstractmethod
    def __init__(self, **kwargs: Any) -> None:
        """The arguments are those of the configuration."""

    @abstractmethod
    def __call__(self, **kwargs: Any) -> dict[str, float]:
        """Named parts of the reward of a response."""


class BuiltinRewardFn(RewardFn):
    """A reward of Trinity, computed by Strop's functions."""

    reward: ClassVar[str]

    def __init__(self, **kwargs: Any) -> None:
        self._args = kwargs

    def __call__(
        self, response: str = "", truth: Any = None, prompt: Any = None, **kwargs: Any
    ) -> dict[str, float]:
        values: dict[str, float] = {}
        options = {key: value for key, value in kwargs.items() if key in ("with_think", "format_score_coef")}
        for part in reward_functions(self.reward, {**self._args, **options}):
            name = part.get("name") or default_reward_name(part["function"])
            function = bind_reward(load_reward_function(part["function"]), name, part.get("args", {}))
            value, _ = function(RewardInput(response, (), truth))
            assert value is not None  # only a function in TRL's form leaves itself out
            values[name] = part.get("weight", 1.0) * float(value)
        return values


def _builtin(class_name: str, reward: str) -> type[BuiltinRewardFn]:
    return type(class_name, (BuiltinRewardFn,), {"reward": reward, "__doc__": f"Trinity's `{reward}`."})


_CLASS_NAMES = {
    "math_reward": "MathRewardFn",
    "math_boxed_reward": "MathBoxedRewardFn",
    "math_dapo_reward": "MathDAPORewardFn",
    "accuracy_reward": "AccuracyReward",
    "format_reward": "FormatReward",
    "countdown_reward": "CountDownRewardFn",
}
REWARD_FN_CLASSES = {name: _builtin(_CLASS_NAMES[name], name) for name in REWARDS if name in _CLASS_NAMES}
"""Classes of Trinity's own reward functions, by their names in a configuration."""
REWARD_FUNCTIONS = Registry("reward_functions", REWARD_FN_CLASSES)


def load_reward_fn(name: str) -> type[Any]:
    """The class of a reward function: a registered name, a dotted path, or `file.py:Class`.

    Raises `RewardError` if there is none.
    """
    provide_reward_modules()
    found = REWARD_FUNCTIONS.get(name)
    if found is None:
        what = f"reward function {name!r}"
        found = ImportPath(name, what, "class", REWARD_FUNCTIONS.modules, RewardError).load()
    if not is_reward_fn(found):
        raise RewardError(
            f"reward function {name!r} is not a class derived from Trinity's RewardFn; a workflow written for "
            "Trinity constructs its reward function and calls it with response and truth."
        )
    return found


def is_reward_fn(function: Any) -> bool:
    """Whether an object is a reward function class written for Trinity, with Strop's base class or Trinity's."""
    return isinstance(function, type) and any(base.__name__ == "RewardFn" for base in function.__mro__[1:])


def construct_reward_fn(
    kind: type[Any], name: str, args: Mapping[str, Any]
) -> Callable[..., dict[str, float]]:
    """A function of completion and answer that calls an object of the class, constructed with `args`.

    Raises RewardError if the constructor does, and if the object requires further arguments.
    """
    reward_fn = construct(kind, f"reward {name!r}", RewardError, **args)
    try:
        inspect.signature(reward_fn).bind(response="", truth=None)
    except TypeError as error:
        raise RewardError(
            f"reward {name!r}: {kind.__name__} cannot be called with `response` and `truth`, which it gets here "
            f"({error}). Give further parameters a default."
        ) from error

    def score(completion: str, answer: Any = None) -> dict[str, float]:
        parts = reward_fn(response=completion, truth=answer)
        return {"score": sum(parts.values()), **parts}

    return score


def has_think_pattern(text: str) -> bool:
    """Whether a response has one pair of think tags: Trinity's `validate_think_pattern`."""
    return format_reward(text, method="think") > 0


def get_logger(
    name: str | None = None, level: int | None = None, in_ray_actor: bool = False
) -> logging.Logger:
    """A logger of Python's standard library."""
    return logging.getLogger(name)


def provide_reward_modules() -> None:
    """Let files of reward functions import their names from the package `trinity`."""
    classes = {kind.__name__: kind for kind in REWARD_FN_CLASSES.values()}
    base: dict[str, Any] = {"RewardFn": RewardFn, "REWARD_FUNCTIONS": REWARD_FUNCTIONS}
    think: Mapping[str, Callable[..., Any]] = {"validate_think_pattern": has_think_pattern}
    provide_modules(
        TRINITY,
        DISTRIBUTION,
        {
            "trinity.common.rewards": {**base, **classes},
            "trinity.common.rewards.reward_fn": {**base, **classes},
            "trinity.common.rewards.basic_reward": {**base, **classes},
            "trinity.common.rewards.math_reward": {**base, **classes},
            "trinity.common.rewards.accuracy_reward": {**base, **classes},
            "trinity.common.rewards.format_reward": {**base, **classes},
            "trinity.common.rewards.countdown_reward": {**base, **classes},
            "trinity.common.rewards.dapo_reward": {**base, **classes},
            "trinity.common.rewards.eval_utils": think,
            "trinity.utils.eval_utils": think,
            "trinity.utils.log": {"get_logger": get_logger},
            "trinity.utils.registry": {"Registry": Registry},
            "trinity.plugins": {},
        },
    )
